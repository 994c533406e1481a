"""Clients whose training fails or takes too long."""

from time import monotonic

from fl_lightning.core.update import LostClient

_LONGEST_REASON = 200


class TimeoutReachedError(Exception):
    """Raised in the training of a client that takes too long."""


class Deadline:
    """The time by which a client must be done.

    Args:
        timeout: how many seconds it has, counted from now; None if there is no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._started = monotonic()

    def check(self) -> None:
        """Raise an error if the time is over."""
        if self._timeout is not None and monotonic() - self._started > self._timeout:
            raise TimeoutReachedError(f"took longer than client.timeout={self._timeout} s")


def lost_client(client: int, error: Exception) -> LostClient:
    """Return a client whose training raised an error. A timeout is reported without its traceback."""
    if isinstance(error, TimeoutReachedError):
        return LostClient(client, str(error))
    return LostClient(client, describe_error(error), error=error)


def describe_error(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
