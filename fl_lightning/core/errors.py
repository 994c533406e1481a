"""The errors that are explained in one line, and a check for the most common mistake."""

from typing import Any


class MisconfigurationError(Exception):
    """Raised for a setting that cannot work. The message names the value, the limit and the fix, in one line.

    The command prints it without a traceback and exits with code 2. It is not Lightning's own
    ``MisconfigurationException``, because ``lightning`` and ``pytorch_lightning`` have different copies of that.
    """


class RoundFailedError(Exception):
    """Raised if a round cannot be completed, because a client failed or too few clients are left.

    The global model and the last checkpoint are those of the round before. The message names the client, the round
    (counted from 1) and the reason, in one line. The command prints it without a traceback and exits with code 1.
    """


def refuse_classes(**arguments: Any) -> None:
    """Reject a class that is given where an object is needed: ``aggregator=FedAvg`` instead of ``FedAvg()``."""
    for name, value in arguments.items():
        if isinstance(value, type):
            raise MisconfigurationError(
                f"{name} is the class {value.__name__}: create an object, {value.__name__}(...)"
            )
