"""The error that is raised for a user's mistake, and a check for the most common one."""

from typing import Any


class MisconfigurationError(Exception):
    """Raised for a setting that cannot work. The message names the value, the limit and the fix, in one line.

    The command prints it without a traceback and exits with code 2. It is not Lightning's own
    ``MisconfigurationException``, because ``lightning`` and ``pytorch_lightning`` have different copies of that.
    """


def refuse_classes(**arguments: Any) -> None:
    """Reject a class that is given where an object is needed: ``aggregator=FedAvg`` instead of ``FedAvg()``."""
    for name, value in arguments.items():
        if isinstance(value, type):
            raise MisconfigurationError(
                f"{name} is the class {value.__name__}: create an object, {value.__name__}(...)"
            )
