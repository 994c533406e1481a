"""The check that every numeric argument passes: it is a finite number within its limits."""

import math

from fl_lightning.core.errors import MisconfigurationError

#: whole numbers from here on do not fit into the 64 bits of NumPy's and torch's integers
_TOO_LARGE = 2**63
#: numbers that must be above 0 must be at least this, because algorithms divide by them and by their squares
_SMALLEST = 1e-30


def check_number(
    name: str,
    value: float,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    reason: str = "",
    setting: str = "it",
) -> None:
    """Reject a number that is not finite, is outside its limits, or is a whole number of more than 64 bits.

    The message is ``{name}={value}, but {reason}: set {setting} to {at_least} or more``, or with another limit.

    Args:
        name: name of the argument.
        value: its value.
        at_least: smallest accepted value.
        above: value that must be exceeded.
        at_most: largest accepted value.
        below: value that must not be reached.
        reason: why there is a limit.
        setting: what to set, such as ``client.epochs``.
    """
    limit = _describe(at_least, above, at_most, below)
    if not isinstance(value, int | float):
        raise MisconfigurationError(f"{name}={value!r} is not a number: set {setting} {limit}")
    if not math.isfinite(value) or (isinstance(value, int) and abs(value) >= _TOO_LARGE):
        problem = "is too large" if isinstance(value, int) else "is not a finite number"
        raise MisconfigurationError(f"{name}={value} {problem}: set {setting} {limit}")
    too_small = (at_least is not None and value < at_least) or (above is not None and value <= above)
    too_small = too_small or (above == 0 and value < _SMALLEST)
    too_large = (at_most is not None and value > at_most) or (below is not None and value >= below)
    if too_small or too_large:
        raise MisconfigurationError(f"{name}={value}{f', but {reason}' if reason else ''}: set {setting} {limit}")


def _describe(at_least: float | None, above: float | None, at_most: float | None, below: float | None) -> str:
    """Return limits as ``to 1 or more``, ``above 0`` or ``in (0, 1]``."""
    low, high = above if at_least is None else at_least, below if at_most is None else at_most
    if low is not None and high is not None:
        return f"in {'(' if at_least is None else '['}{low}, {high}{')' if at_most is None else ']'}"
    if low is not None:
        return f"to {low} or more" if above is None else f"above {low}"
    if high is not None:
        return f"to {high} or less" if below is None else f"below {high}"
    return "to a finite number"
