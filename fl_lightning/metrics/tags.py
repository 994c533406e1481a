"""Numbers of clients as scalars by tag: a curve each, or a few for all where they are many."""

from collections.abc import Mapping
from typing import Literal

import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

QUANTILES = (10, 50, 90)
WORST = 3
#: up to so many clients get a curve each, unless told otherwise
MAX_CURVES = 20


def client_scalars(
    prefix: str, values: Mapping[int, float], each: bool, worst: Literal["largest", "smallest"] = "largest"
) -> dict[str, Tensor]:
    """The tags of one number a client.

    Args:
        prefix: what every tag begins with, ``angles/`` or ``feddna/gamma_``.
        values: by client.
        each: whether every client gets a tag; otherwise quantiles, and the three worst, the worst first.
        worst: which end of the values is the bad one.
    """
    numbers = torch.tensor(list(values.values()), dtype=torch.float64)
    if each:
        return {f"{prefix}client_{client:03d}": value for client, value in zip(values, numbers, strict=True)}
    levels = torch.tensor(QUANTILES, dtype=torch.float64) / 100
    quantiles = numbers.quantile(levels)
    extremes = numbers.sort(descending=worst == "largest").values[:WORST]
    return {f"{prefix}quantile_{level}": value for level, value in zip(QUANTILES, quantiles, strict=True)} | {
        f"{prefix}worst_{rank}": value for rank, value in enumerate(extremes, start=1)
    }


def check_max_curves(max_curves: int) -> int:
    """Refuses a negative number."""
    if max_curves < 0:
        raise MisconfigurationException(f"max_curves={max_curves}, but it is a number of clients: set it to 0 or more")
    return max_curves
