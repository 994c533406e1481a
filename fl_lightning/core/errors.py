"""The error that a user's mistake raises."""


class MisconfigurationError(Exception):
    """A setting that cannot work. The message names the value, the limit and the fix, in one line.

    The command prints it without a traceback and exits with code 2. It is not Lightning's own
    ``MisconfigurationException``, of which ``lightning`` and ``pytorch_lightning`` have different copies.
    """
