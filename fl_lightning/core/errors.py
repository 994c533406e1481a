"""The error that is raised for a user's mistake."""


class MisconfigurationError(Exception):
    """Raised for a setting that cannot work. The message names the value, the limit and the fix, in one line.

    The command prints it without a traceback and exits with code 2. It is not Lightning's own
    ``MisconfigurationException``, because ``lightning`` and ``pytorch_lightning`` have different copies of that.
    """
