"""The report: runs as figures and tables on one HTML page."""
