"""The metrics in NumPy, in float64, written from the papers."""

import numpy as np
from torch import nn

KINDS = {
    "convolution": nn.Conv2d,
    "fully_connected": nn.Linear,
    "normalisation": (nn.BatchNorm1d, nn.BatchNorm2d),
}


def trainable(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def groups(model: nn.Module) -> dict[str, list[str]]:
    """Return the parameters of each layer, of each kind of layer, and of the whole model."""
    names = trainable(model)
    found = {name.rsplit(".", 1)[0]: [] for name in names}
    for name in names:
        found[name.rsplit(".", 1)[0]].append(name)
    layers = dict(found)
    for kind, module_type in KINDS.items():
        members = [layer for layer in layers if isinstance(model.get_submodule(layer), module_type)]
        if members:
            found[kind] = [name for layer in members for name in layers[layer]]
    return found | {"all": names}


def vector(state, names) -> np.ndarray:
    return np.concatenate([state[name].detach().numpy().astype(np.float64).ravel() for name in names])


def norms(model, start, states, weights, end) -> dict[str, float]:
    """Compute eq. 4, 5 and 24 of FedNNNN."""
    p = np.array(weights) / np.sum(weights)
    values = {}
    for group, names in groups(model).items():
        updates = [vector(state, names) - vector(start, names) for state in states]
        n = np.linalg.norm(sum(share * update for share, update in zip(p, updates, strict=True)))
        e = sum(share * np.linalg.norm(update) for share, update in zip(p, updates, strict=True))
        move = np.linalg.norm(vector(end, names) - vector(start, names))
        values |= {f"{group}/{k}": v for k, v in {"N": n, "E": e, "N_over_E": n / e, "move": move}.items()}
    return values


def gradients(model, start, states, weights, rate: float = 1.0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return g and g_k of FedAdp."""
    names = trainable(model)
    each = [(vector(start, names) - vector(state, names)) / rate for state in states]
    return np.average(each, axis=0, weights=weights), each


def angles(model, start, states, weights) -> list[float]:
    """Compute eq. 7 of FedAdp."""
    g, each = gradients(model, start, states, weights)
    return [np.arccos(g @ g_k / (np.linalg.norm(g) * np.linalg.norm(g_k))) for g_k in each]


def fedadp_weights(smoothed, weights, alpha: float = 5.0) -> np.ndarray:
    """Compute eq. 9-10 of FedAdp."""
    f = alpha * (1 - np.exp(-np.exp(-alpha * (np.array(smoothed) - 1))))
    raw = np.array(weights) * np.exp(f)
    return raw / raw.sum()


def kl(mean, var, other_mean, other_var) -> float:
    return float(np.sum(np.log(np.sqrt(other_var / var)) + (var + (mean - other_mean) ** 2) / (2 * other_var) - 0.5))
