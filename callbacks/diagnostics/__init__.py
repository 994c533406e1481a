"""Diagnostics: callbacks that measure the updates of every round."""
