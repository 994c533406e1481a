"""Which logged numbers are a module's own: all that do not stand below a name of ours."""

from collections.abc import Iterable

_OURS = (
    "angle_weights",
    "angles",
    "angles_smoothed",
    "bytes",
    "clients",
    "divergence",
    "fedadp",
    "feddna",
    "fedma",
    "norms",
    "participation",
    "round",
    "train",
)


def evaluated(names: Iterable[str]) -> list[str]:
    """What the module logs when it is validated, by whatever name."""
    return [name for name in names if name.split("/")[0] not in _OURS and name not in ("epoch", "hp_metric")]
