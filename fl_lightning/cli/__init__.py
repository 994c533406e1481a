"""The ``fl-lightning`` command."""
