"""FedNNNN: norm-normalised aggregation with momentum, and each of the two on its own.

Nagura, Bian, Sato. FedNNNN: Norm-Normalized Neural Network Aggregation for Fast and Accurate Federated Learning.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.streaming import StreamingAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState
from fl_lightning.core.update import ClientUpdate
from fl_lightning.metrics.functional import layer_norms

Granularity = Literal["model", "layer"]

#: if N is at or below this value there is no direction to follow, and the paper returns w_t unchanged (section 4.2)
SMALLEST_NORM = 1e-12


class _TwoModels(StreamingAggregator):
    """d ← γ d + step, w ← w + d (eq. 10-13, algorithm 3, lines 9-12). The plain average is served (section 4.1).

    Clients continue from w + d, whose accuracy the paper calls extremely poor. Both models have averaged statistics.
    """

    def __init__(self, gamma: float) -> None:
        check_number("gamma", gamma, at_least=0, below=1, reason="it is the share of the last step that is kept")
        self.gamma = gamma
        self.momentum: Tensor | None = None

    def finish_round(self) -> Aggregate:
        mean, start = self.mean, self.start.parameters
        average = mean.parameters - start
        scale, moves = self.scale(average)
        last = self.kept_vector(self.momentum, "momentum")
        kept = torch.where(moves, average.new_full((), self.gamma), 1.0)  # what does not move keeps its momentum
        self.momentum = average.mul_(scale).addcmul_(kept, last)  # eq. 10 or 12
        clients = torch.addcmul(start, moves.to(start), self.momentum)  # eq. 11 or 13
        return Aggregate(
            state=self.result(FlatState(clients, mean.statistics, mean.counters)), served_state=self.result(mean)
        )

    def scale(self, average: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor for the average update, and a mask of the entries that move."""
        return average.new_ones(1), torch.ones(1, dtype=torch.bool, device=average.device)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.momentum = require_type(state_dict["momentum"], Tensor | None, "momentum")


class FedNNNN(_TwoModels):
    """Moves in the direction of the average update, by the clients' mean update norm, with momentum (eq. 12-13).

    Args:
        beta: length of the step in units of E, the clients' mean update norm.
        gamma: share of the last step that is kept; 0 is :class:`NormNorm`.
        granularity: ``model`` takes one norm over all parameters, as in the paper; ``layer`` takes one per layer.
    """

    def __init__(self, beta: float, gamma: float, granularity: Granularity = "model") -> None:
        super().__init__(gamma)
        check_number("beta", beta, above=0, reason="it is the length of a step")
        if granularity not in ("model", "layer"):
            raise MisconfigurationError(f"granularity={granularity!r}: set granularity to model or layer")
        self.beta = beta
        self.granularity = granularity

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        norms = 1 if self.granularity == "model" else len(self.layout.layers)
        self.sums["norm"] = torch.zeros(norms, dtype=self.dtype, device=self.device)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        self.sums["norm"] += weight * self._norms(self.round.difference(update, self.layout.parameters))

    def scale(self, average: Tensor) -> tuple[Tensor, Tensor]:
        n = self._norms(average)  # eq. 4
        e = self.sums["norm"] / self.sums["weight"]  # eq. 5
        moves = n > SMALLEST_NORM
        return self._spread(torch.where(moves, self.beta * e / n, 0.0)), self._spread(moves)  # eq. 8

    def _norms(self, vector: Tensor) -> Tensor:
        """Return ‖vector‖ as one entry, or as one entry per layer."""
        if self.granularity == "model":
            return vector.norm().reshape(1)
        return layer_norms(vector, self.layout)

    def _spread(self, values: Tensor) -> Tensor:
        """Return the value of the whole model as it is, or repeat each layer's value for all entries of the layer."""
        if self.granularity == "model":
            return values
        layer = dict(zip(self.layout.layers, values.unbind(), strict=True))
        sizes = {name: self.layout.shapes[name].numel() for name in self.layout.parameters}
        return torch.cat([layer[name.rpartition(".")[0]].expand(size) for name, size in sizes.items()])


class NormNorm(FedNNNN):
    """Normalised aggregation without momentum (eq. 8).

    Args:
        beta: length of the step in units of E, the clients' mean update norm.
        granularity: ``model`` takes one norm over all parameters, as in the paper; ``layer`` takes one per layer.
    """

    def __init__(self, beta: float, granularity: Granularity = "model") -> None:
        super().__init__(beta=beta, gamma=0.0, granularity=granularity)


class Momentum(_TwoModels):
    """Momentum without normalisation (eq. 10-11).

    Args:
        gamma: share of the last step that is kept.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__(gamma)
