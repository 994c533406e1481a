"""Suites of runs: defining and running them, reading their logs, and tabulating their results."""
