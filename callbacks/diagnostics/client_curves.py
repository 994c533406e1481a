"""Curves of one value per client: one curve each or, if there are many clients, a few for all of them."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.limits import check_number

QUANTILES = (10, 50, 90)
WORST = 3
#: default maximum number of clients that get one curve each
MAX_CURVES = 20


def client_curves(
    prefix: str, values: Mapping[int, float | Tensor], each: bool, worst: Literal["largest", "smallest"] = "largest"
) -> dict[str, Tensor]:
    """Return the tags of one value per client.

    Args:
        prefix: prefix of every tag, such as ``angles/`` or ``feddna/gamma_``.
        values: the value of each client.
        each: whether every client gets a tag; otherwise quantiles and the three worst, worst first.
        worst: which end of the values is the worst.
    """
    numbers = torch.tensor([float(value) for value in values.values()], dtype=torch.float64)
    if each:
        return {f"{prefix}client_{client:03d}": value for client, value in zip(values, numbers, strict=True)}
    levels = torch.tensor(QUANTILES, dtype=torch.float64) / 100
    quantiles = numbers.quantile(levels)
    extremes = numbers.sort(descending=worst == "largest").values[:WORST]
    return {f"{prefix}quantile_{level}": value for level, value in zip(QUANTILES, quantiles, strict=True)} | {
        f"{prefix}worst_{rank}": value for rank, value in enumerate(extremes, start=1)
    }


def check_max_curves(max_curves: int) -> int:
    """Return ``max_curves``, or raise an error if it is negative."""
    check_number("max_curves", max_curves, at_least=0, reason="it is a number of clients")
    return max_curves
