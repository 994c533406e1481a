"""Suites of runs: what to run, running it, reading what was logged, and the table of results."""
