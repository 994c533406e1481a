"""Comparisons and reports: suites, the runs on disk, the table, the figures, the page."""
