"""Aggregators that keep the updates of a round until it ends, either on the rank that trained them or on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregator, no_counters
from fl_lightning.core.distributed import gather_messages, gather_notes, is_distributed, max_over_ranks, sum_over_ranks
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate


@dataclass
class Participant:
    """What every rank knows about a client of the round: ``update`` without its state, and its weight."""

    update: ClientUpdate
    weight: float


@dataclass
class Received(Participant):
    """An update as its rank keeps it: ``state`` as flat vectors, ``update`` without its state."""

    state: FlatState


class SplitAggregator(Aggregator):
    """Keeps the updates of the round until it ends; in a distributed run, each rank keeps its own clients' updates.

    The ranks exchange sums over the clients (:meth:`sum_over_clients`, :meth:`mean_of`) and a few numbers per client
    (:meth:`rows_of_all`), which is far less than all updates.

    Attributes:
        received: the updates of this rank's clients, sorted by client number.
        cohort: all clients of the round, sorted by number, without their states. Metrics, logged values and extras are
            known only to the rank that trained the client.
    """

    received: list[Received]
    cohort: Sequence[Participant]

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self.cohort = self.received = []

    def receive(self, update: ClientUpdate, weight: float) -> None:
        self._changed.add(update.state, weight)
        state = self.layout.flatten(update.state)
        self.received.append(Received(replace(update, state={}, memory={}), weight, state))
        self.received.sort(key=_number)

    def reduce(self) -> None:
        if is_distributed():
            notes = gather_notes([_to_note(item) for item in self.received], self.device)
            self.cohort = sorted((Participant(*_from_note(note)) for note in notes), key=_number)
        self._changed.reduce()

    @property
    def sizes(self) -> Tensor:
        """The weights of all clients before normalisation: n_k, or 1."""
        return to_device(torch.tensor([item.weight for item in self.cohort], dtype=self.dtype), self.device)

    @property
    def weights(self) -> Tensor:
        """p_k, the normalised weights of all clients."""
        return self.sizes / self.sizes.sum()

    def own(self, values: Tensor) -> Tensor:
        """Return the rows of ``values`` (one per client of the round) that belong to ``received``."""
        return values[self._positions()] if self._is_split else values

    def rows_of_all(self, rows: Sequence[Tensor], width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return one row per client of the round, on every rank.

        Args:
            rows: one vector of ``width`` numbers for each client in ``received``.
            width: the number of columns, which a rank without clients must know too.
            dtype: the type of the result; by default, the type of sums.
        """
        empty = self.sizes.new_zeros(0, width, dtype=dtype)
        own = torch.stack(list(rows)).to(empty) if rows else empty
        if not self._is_split:
            return own
        matrix = own.new_zeros(len(self.cohort), width)
        matrix[self._positions()] = own
        return self.sum_over_clients(matrix)

    def sum_over_clients(self, total: Tensor) -> Tensor:
        """Turn a sum over the clients in ``received`` into the sum over all clients, in place, and return it."""
        if self._is_split:
            sum_over_ranks(total)
        return total

    @property
    def mean(self) -> FlatState:
        return self.mean_with(self.sizes)

    def mean_with(self, weights: Tensor) -> FlatState:
        """Return the mean of parameters and statistics with the given weights, and the next counters.

        The weights need not sum to 1: dividing once after the sum gives the same bits as a streaming aggregator.
        """
        return FlatState(self.mean_of("parameters", weights), self.mean_of("statistics", weights), self.counters)

    def mean_of(self, part: Literal["parameters", "statistics"], weights: Tensor) -> Tensor:
        """Return the mean of one part of all clients' states with the given weights, which need not sum to 1."""
        return self.sum_over_clients(self.own_share_of_mean(part, weights))

    def own_share_of_mean(self, part: Literal["parameters", "statistics"], weights: Tensor) -> Tensor:
        """Return what the clients in ``received`` contribute to :meth:`mean_of`."""
        total = getattr(self.layout.zeros(self.dtype, self.device), part)
        for weight, item in zip(self.own(weights).tolist(), self.received, strict=True):
            if weight:  # a client that is left out may have sent anything, and 0 times infinity is not a number
                total.add_(getattr(item.state, part), alpha=weight)
        return total.div_(weights.sum())

    @property
    def counters(self) -> Tensor:
        """The next value of each counter: the largest one."""
        counters = no_counters(self.layout.zeros(self.dtype, self.device))
        for item in self.received:
            counters = torch.maximum(counters, item.state.counters)
        if self._is_split:
            max_over_ranks(counters)
        return counters

    @property
    def _is_split(self) -> bool:
        """Whether other ranks may have clients of the round; even then, all clients may be this rank's."""
        return self.cohort is not self.received

    def _positions(self) -> Tensor:
        """Return the positions of this rank's clients in the cohort."""
        own = {item.update.client for item in self.received}
        positions = [place for place, item in enumerate(self.cohort) if item.update.client in own]
        return to_device(torch.tensor(positions, dtype=torch.int64), self.device)


class GatheredAggregator(SplitAggregator):
    """Keeps all updates of the round until it ends; in a distributed run, every rank gets all of them.

    If sums over the clients and a few numbers per client are enough, derive from :class:`SplitAggregator`, which
    exchanges less.

    Attributes:
        received: the updates, sorted by client number.
    """

    def reduce(self) -> None:
        if is_distributed():
            messages = [_to_message(item) for item in self.received]
            gathered = [_from_message(*message) for message in gather_messages(messages, self.device)]
            self.cohort = self.received = sorted(gathered, key=_number)
        self._changed.reduce()


#: the fields of an update that are plain numbers
_NUMBERS = ("client", "num_samples", "num_steps", "learning_rate", "num_bytes")
_PARTS = ("parameters", "statistics", "counters")


def _number(item: Participant) -> int:
    return item.update.client


def _to_note(item: Participant) -> dict[str, Any]:
    """Return the parts of an update that JSON can hold, except metrics and logged values, which only its rank needs."""
    update = item.update
    counts = None if update.class_counts is None else update.class_counts.tolist()
    numbers = {name: getattr(update, name) for name in _NUMBERS}
    return {"update": numbers, "class_counts": counts, "weight": item.weight}


def _from_note(note: dict[str, Any]) -> tuple[ClientUpdate, float]:
    counts = None if note["class_counts"] is None else torch.tensor(note["class_counts"])
    return ClientUpdate(state={}, class_counts=counts, **note["update"]), note["weight"]


def _to_message(item: Received) -> tuple[dict[str, Any], StateDict]:
    """Return an update as a note and tensors."""
    parts = {name: getattr(item.state, name) for name in _PARTS}
    extras = {f"extras/{name}": value for name, value in item.update.extras.items()}
    return _to_note(item), parts | extras


def _from_message(note: dict[str, Any], tensors: StateDict) -> Received:
    state = FlatState(*(tensors.pop(name) for name in _PARTS))
    update, weight = _from_note(note)
    update.extras = {name.removeprefix("extras/"): value for name, value in tensors.items()}
    return Received(update, weight, state)
