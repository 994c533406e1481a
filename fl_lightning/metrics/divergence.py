"""How far apart the clients are, and how far the global model is from one trained on all data.

Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting (section V-C). https://arxiv.org/abs/2012.00661
Duan, Li, Lu. FedDNA: Federated Learning with Decoupled Normalization-Layer Aggregation for Non-IID Data (figures 1, 5).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.layers import statistics_entries
from fl_lightning.core.saved_file import DamagedFileError, read_saved_file
from fl_lightning.core.state import StateLayout, exact_dtype
from fl_lightning.metrics.comparison import AverageComparison
from fl_lightning.metrics.functional import gaussian_kl, gradient_divergence

#: added to variances, as BatchNorm does before it divides by them
EPSILON = 1e-5


class GradientDivergence(AverageComparison):
    """The mean distance (1/m) Σ ‖g - g_k‖ of the clients of a round, with g_k = -Δ_k/η and g their weighted average.

    The updates of a round are kept in float32 until it ends. In a distributed run, each rank keeps its own clients'
    updates.

    Args:
        model: a model with the same names and shapes as the states to measure; it is not kept.
    """

    def update(
        self,
        start: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        weight: float = 1.0,
        learning_rate: float | None = None,
        difference: Tensor | None = None,
    ) -> None:
        """Add a client.

        Args:
            start: the state that the client started from.
            state: the state that the client ended with.
            weight: the client's weight before normalisation: its number of samples, or 1.
            learning_rate: the client's η; the mean over the clients is used, or 1 if none is known.
            difference: ``state - start`` over ``layout.parameters`` as one vector, if the caller has it already.
        """
        self._add(start, state, weight, learning_rate or 0.0, difference=difference)

    def compare(self, average: Tensor, updates: Iterator[Tensor]) -> list[float]:
        """Return each η ‖g - g_k‖."""
        distances = [update.sub_(average).norm() for update in updates]
        return torch.stack(distances).tolist() if distances else []

    def compute(self) -> dict[str, Tensor]:
        """Return ``gradient``."""
        distances, _, rates = self._rows(width=3).T
        return {"gradient": torch.tensor(gradient_divergence(distances.tolist(), rates.tolist()))}

    def next_round(self) -> None:
        """Start a new round."""
        self.reset()


class StatisticsDivergence(Metric):
    """The KL divergence of a model from a reference such as a centrally trained one, for statistics and parameters.

    Statistics are defined as in FedDNA: BatchNorm's running means and variances or, in a model without them, the
    biases and weights of LayerNorm (a weight may be negative, so its absolute value is the variance). Each pair is
    taken as one Gaussian per channel. The other parameters of a layer, weight and bias together, are taken as draws
    from one Gaussian. The divergences are summed over channels or layers. A model with neither BatchNorm nor LayerNorm
    has no ``statistics``.

    Args:
        model: a model with the same names and shapes as the states to measure; it is not kept.
        reference: a state dict of the same model, or the path of a checkpoint that holds one.

    Example::

        divergence = StatisticsDivergence(model, "centralised.ckpt")
        divergence.update(model.state_dict())
        divergence.compute()  # {"statistics": ..., "parameters": ...}
    """

    full_state_update = False
    kl: Tensor

    def __init__(self, model: nn.Module, reference: Mapping[str, Tensor] | str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layout = StateLayout(model)
        self._means, self._variances = statistics_entries(model, self.layout)
        state = reference if isinstance(reference, Mapping) else _read(reference)
        self._reference = [(mean.cpu(), var.cpu()) for mean, var in self._gaussians(_checked(state, self.layout))]
        # Every rank has the same model, so the maximum does not change its numbers.
        self.add_state("kl", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="max")

    def update(self, state: Mapping[str, Tensor]) -> None:
        """Compare a state with the reference; only the last state counts."""
        pairs = zip(self._gaussians(state), self._reference, strict=True)
        kls = [gaussian_kl(mean.cpu(), var.cpu(), *reference).sum() for (mean, var), reference in pairs]
        self.kl = torch.stack(kls).to(self.kl)

    def compute(self) -> dict[str, Tensor]:
        """Return ``parameters``, and ``statistics`` if the model has any."""
        statistics, parameters = self.kl.cpu()
        values = {"statistics": statistics} if self._means else {}
        return values | {"parameters": parameters}

    def _gaussians(self, state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return means and variances, first of the channels' statistics, then of the layers' other parameters."""
        statistics = {*self._means, *self._variances}
        groups = [[name for name in names if name not in statistics] for names in self.layout.layers.values()]
        layers = [_concatenate(state, names) for names in groups if names]
        means = _stack([layer.mean() for layer in layers])
        variances = _stack([layer.var(correction=0) for layer in layers])
        channels = _concatenate(state, self._means), _concatenate(state, self._variances).abs() + EPSILON
        return [channels, (means, variances + EPSILON)]


def _stack(values: list[Tensor]) -> Tensor:
    return torch.stack(values) if values else torch.zeros(0, dtype=torch.float64)


def _concatenate(state: Mapping[str, Tensor], names: list[str]) -> Tensor:
    if not names:
        return torch.zeros(0, dtype=torch.float64)
    values = [state[name].detach().flatten() for name in names]
    return torch.cat([value.to(exact_dtype(value.device)) for value in values])


def _read(path: str | Path) -> Mapping[str, Tensor]:
    if not Path(path).is_file():
        raise MisconfigurationError(f"reference={path}, but there is no such file: give the path of a checkpoint")
    try:
        content = read_saved_file(Path(path))
    except DamagedFileError as error:
        raise MisconfigurationError(f"reference={path} {error}: replace it") from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        raise MisconfigurationError(f"reference={path} holds no model state: give the path of a checkpoint")
    return state


def _checked(state: Mapping[str, Tensor], layout: StateLayout) -> Mapping[str, Tensor]:
    for name in [*layout.parameters, *layout.statistics]:
        shape = tuple(state[name].shape) if name in state else None
        if shape != tuple(layout.shapes[name]):
            there = "missing" if shape is None else f"of shape {shape}"
            raise MisconfigurationError(
                f"the reference is a different model: {name} is {there} there and of shape {tuple(layout.shapes[name])}"
                " here: use a checkpoint of this model"
            )
    return state
