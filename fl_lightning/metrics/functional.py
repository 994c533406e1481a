"""The formulas behind the metrics, over flat vectors. The aggregators use them too."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from statistics import fmean

import torch
from torch import Tensor

from fl_lightning.core.state import StateLayout


def update_vector(layout: StateLayout, start: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Tensor:
    """Return Δ = w_k - w_t over the trainable parameters, in at least float32 so that 16-bit weights lose nothing."""
    names = layout.parameters
    dtype = reduce(torch.promote_types, {state[name].dtype for name in names}, torch.float32)
    size = sum(layout.shapes[name].numel() for name in names)
    vector = torch.empty(size, dtype=dtype, device=state[names[0]].device)
    for name, piece in layout.split(names, vector).items():
        torch.sub(state[name].detach().to(dtype), start[name].detach().to(dtype), out=piece)
    return vector


def layer_norms(vector: Tensor, layout: StateLayout) -> Tensor:
    """Return the norm of each layer's part of a parameter vector, weight and bias together, in layer order."""
    pieces = vector.split([layout.shapes[name].numel() for name in layout.parameters])
    dtype = torch.promote_types(vector.dtype, torch.float64) if vector.device.type != "mps" else vector.dtype
    norms = torch.stack([torch.linalg.vector_norm(piece, dtype=dtype) for piece in pieces])
    squares = dict(zip(layout.parameters, norms.square().unbind(), strict=True))
    return torch.stack([reduce(add, [squares[name] for name in names]) for names in layout.layers.values()]).sqrt()


def angle_between(first: Tensor, second: Tensor) -> float:
    """Return the angle in radians; π/2 if a vector is zero, because it points neither along nor against the other."""
    return angles_between(first, [second])[0]


def angles_between(first: Tensor, others: Iterable[Tensor]) -> list[float]:
    """Return the angle between the first vector and each of the others, as :func:`angle_between` does.

    All products are read at once, because the host waits for a GPU with every read.
    """
    products = torch.stack([torch.stack([other.dot(other), first.dot(other)]) for other in others])
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
        distances: ‖Δ - Δ_k‖, the distance of each client's update from their average.
        learning_rates: what the clients report; η is their mean, or 1 if no client reports one.
    """
    reported = [rate for rate in learning_rates if rate]
    return fmean(distances) / (fmean(reported) if reported else 1.0)


def gaussian_kl(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Tensor:
    """Return the KL divergence of the Gaussian (mean, var) from the other one, entry by entry."""
    return 0.5 * (torch.log(other_var / var) + (var + (mean - other_mean).square()) / other_var - 1)
