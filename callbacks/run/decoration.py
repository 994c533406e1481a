"""Keeping errors in optional output from ending a run."""

import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.core.errors import MisconfigurationError

P = ParamSpec("P")


def decoration(hook: Callable[P, None]) -> Callable[P, None]:
    """Turn an unexpected error in a callback's hook into a one-line warning, after which the run continues.

    A user's mistake, Ctrl-C and SIGTERM still end the run, and so does a closed pipe: nobody reads the output any more.
    """

    @functools.wraps(hook)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(*args, **kwargs)
        except (MisconfigurationError, BrokenPipeError):
            raise
        except Exception as error:
            rank_zero_warn(
                f"{hook.__qualname__} failed, and the run goes on without it: {_one_line(error)}",
                stacklevel=5,  # at the hook's caller, Lightning, whose warnings are printed without a line of code
            )

    return guarded


def _one_line(error: Exception) -> str:
    """Return the type and message of an error, even of one that cannot be converted to a string."""
    return " ".join("".join(traceback.format_exception_only(type(error), error)).split())
