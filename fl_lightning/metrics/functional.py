"""The formulas behind the metrics, over flat vectors. The aggregators use them too."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from statistics import fmean

import torch
from torch import Tensor

from fl_lightning.core.state import StateLayout, exact_dtype


def layer_norms(vector: Tensor, layout: StateLayout) -> Tensor:
    """Return the norm of each layer's part of a parameter vector, weight and bias together, in layer order."""
    exact = vector.to(exact_dtype(vector.device))
    pieces = exact.split([layout.shapes[name].numel() for name in layout.parameters])
    squares = dict(zip(layout.parameters, [piece.dot(piece) for piece in pieces], strict=True))
    return torch.stack([reduce(add, [squares[name] for name in names]) for names in layout.layers.values()]).sqrt()


def products_of(first: Tensor, other: Tensor) -> Tensor:
    """Return what :func:`angles_of` needs to know about a vector: its square and its product with the first vector."""
    return torch.stack([other.dot(other), first.dot(other)])


def angles_of(first: Tensor, products: Tensor) -> list[float]:
    """Return the angle between the first vector and each other vector, in radians.

    It is π/2 if a vector is zero, because that points neither along nor against the other. ``products`` has one row per
    other vector, see :func:`products_of`. All rows are read at once, because the host waits for a GPU with every read.
    """
    square = first.dot(first).expand(len(products), 1)
    return [_angle(*row) for row in torch.cat([square, products], dim=1).tolist()]


def _angle(first_square: float, second_square: float, product: float) -> float:
    lengths = math.sqrt(first_square * second_square)
    if lengths == 0:
        return math.pi / 2
    return math.acos(max(-1.0, min(1.0, product / lengths)))


def gompertz(angle: Tensor, alpha: float) -> Tensor:
    """Return f(θ) of FedAdp's eq. 9: α for a client that agrees with the average, nearly 0 for one that does not."""
    return alpha * (1 - torch.exp(-torch.exp(-alpha * (angle - 1))))


def adaptive_weights(angles: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ψ_k of FedAdp's eq. 10, which combine the clients' smoothed angles with their weights and sum to 1."""
    return torch.softmax(gompertz(angles, alpha) + weights.log(), dim=0)


def gradient_divergence(distances: Sequence[float], learning_rates: Sequence[float | None]) -> float:
    """Return (1/m) Σ ‖g - g_k‖ with g_k = -Δ_k/η (FedAdp, section V-C).

    Args:
        distances: ‖Δ - Δ_k‖, the distance of each client's update from the average update.
        learning_rates: what the clients report; η is their mean, or 1 if no client reports one.
    """
    reported = [rate for rate in learning_rates if rate]
    return fmean(distances) / (fmean(reported) if reported else 1.0)


def gaussian_kl(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Tensor:
    """Return the KL divergence of the Gaussian (mean, var) from the other one, entry by entry."""
    return 0.5 * (torch.log(other_var / var) + (var + (mean - other_mean).square()) / other_var - 1)
