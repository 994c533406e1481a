"""Aggregators that add up the updates of a round as they arrive."""

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregator, no_counters
from fl_lightning.core.distributed import max_over_ranks, sum_over_ranks
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState
from fl_lightning.core.update import ClientUpdate


class StreamingAggregator(Aggregator):
    """Sums the clients' states as they come in, in float64.

    A subclass reads the weighted mean from :attr:`mean` and overrides :meth:`finish_round`. If it needs further sums,
    it keeps them in :attr:`sums`, which :meth:`reduce` sums over the ranks, and adds to them in :meth:`accumulate`.

    Attributes:
        sums: sums over the clients by name, as float64 tensors.
    """

    sums: dict[str, Tensor]
    _counters: Tensor
    _received: FlatState | None = None
    _difference: Tensor | None = None

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        zeros = self.layout.zeros(self.dtype, self.device)
        self.sums = {
            "weight": torch.zeros((), dtype=self.dtype, device=self.device),
            "parameters": zeros.parameters,
            "statistics": zeros.statistics,
        }
        self._counters = no_counters(zeros)
        self._received = self._difference = None

    def receive(self, update: ClientUpdate, weight: float) -> None:
        self._changed.add(update.state, weight)
        # All clients use the same memory, because allocating large vectors can cost more than adding them up.
        if self._received is None:
            self._received = self.layout.zeros(self.dtype, self.device)
        self.accumulate(self.layout.flatten(update.state, out=self._received), update, weight)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        """Add one client to the sums.

        Args:
            state: the update's state as flat vectors of type :attr:`dtype`, which the next client overwrites.
            update: the update.
            weight: the client's weight before normalisation.
        """
        self.sums["weight"] += weight
        self.sums["parameters"].add_(state.parameters, alpha=weight)
        self.sums["statistics"].add_(state.statistics, alpha=weight)
        torch.maximum(self._counters, state.counters, out=self._counters)

    def update_of(self, state: FlatState) -> Tensor:
        """Return w_k - w_t, in memory that the next call overwrites."""
        if self._difference is None:
            self._difference = torch.empty_like(self.start.parameters)
        return torch.sub(state.parameters, self.start.parameters, out=self._difference)

    def reduce(self) -> None:
        self._received = self._difference = None
        sum_over_ranks(*self.sums.values())
        max_over_ranks(self._counters)
        self._changed.reduce()

    @property
    def mean(self) -> FlatState:
        total = self.sums["weight"]
        return FlatState(self.sums["parameters"] / total, self.sums["statistics"] / total, self._counters)
