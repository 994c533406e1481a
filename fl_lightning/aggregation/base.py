"""The server's half of an algorithm: how the clients' updates of a round become the next global model.

An aggregator is called in this order, once a round:

    begin_round(model) -> receive(update, weight) for each client -> reduce() -> finish_round()

``reduce`` joins what the ranks of a distributed run received; after it every rank computes the same result.
Streaming aggregators keep sums only: their memory does not grow with the number of clients. Gathered ones keep the
updates of the round.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from fl_lightning.distributed import gather_objects, gather_rows, max_over_ranks, sum_over_ranks
from fl_lightning.state import FlatState, StateDict, StateLayout, exact_dtype
from fl_lightning.store import ClientStore
from fl_lightning.update import ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.local import ClientCallback

Weighting = Literal["samples", "uniform"]


def weight_of(update: ClientUpdate, weighting: Weighting) -> float:
    """An update's weight before normalisation: n_k, or 1 for every client."""
    return float(update.num_samples) if weighting == "samples" else 1.0


@dataclass
class Aggregate:
    """The result of a round.

    Args:
        state: where the clients go on from.
        served_state: what is evaluated and saved as the model; the same object unless the algorithm has two models.
        metrics: numbers of the algorithm's own to log.
    """

    state: StateDict
    served_state: StateDict = None  # type: ignore[assignment]
    metrics: dict[str, float | Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.served_state is None:
            self.served_state = self.state


class Aggregator(ABC):
    """Base of all aggregators. Derive from :class:`StreamingAggregator` or :class:`GatheredAggregator`."""

    #: K, the number of all clients, not only of those in a round; known in a run
    num_clients: int | None = None
    #: the run's seed
    seed: int = 0
    layout: StateLayout
    #: the global model that the clients of this round started from, in flat vectors
    start: FlatState
    _start_state: StateDict
    _store: ClientStore | None = None

    @property
    def store(self) -> ClientStore:
        """What is remembered of each client; the server's in a run, one of its own outside."""
        if self._store is None:
            self._store = ClientStore()
        return self._store

    def prepare(self, model: nn.Module, num_clients: int, seed: int, store: ClientStore) -> None:
        """Called once, before the first round. The place to refuse a model that the algorithm cannot work with."""
        self.num_clients = num_clients
        self.seed = seed
        self._store = store

    def client_callbacks(self) -> "list[ClientCallback]":
        """The client's half of the algorithm: callbacks that every client's Trainer gets."""
        return []

    def broadcast(self) -> dict[str, Tensor]:
        """What is sent to the clients beside the model; called after :meth:`begin_round`."""
        return {}

    def personal_state(self, client: int) -> StateDict:
        """Those entries of the state that a client starts from which are its own."""
        return {}

    def begin_round(self, model: nn.Module) -> None:
        """Called before any client trains. ``model`` holds the state that the clients start from."""
        self.store.begin_round()
        self.layout = StateLayout(model)
        self._start_state = {name: value.detach().clone() for name, value in _tensors(model).items()}
        self.start = self.layout.flatten(self._start_state, dtype=self._dtype)

    @abstractmethod
    def receive(self, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done. ``weight`` is not normalised: n_k, or 1."""

    @abstractmethod
    def reduce(self) -> None:
        """Called on every rank when its clients are done; joins what the ranks received."""

    @abstractmethod
    def finish_round(self) -> Aggregate:
        """Called last, on every rank: the next global model."""

    def state_dict(self) -> dict[str, Any]:
        """What the algorithm keeps from round to round. Only plain types and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""

    def aggregate(
        self, model: nn.Module, updates: Sequence[ClientUpdate], weighting: Weighting = "samples"
    ) -> Aggregate:
        """One whole round outside a Trainer.

        Args:
            model: holds the state that the clients started from; it is not changed.
            updates: what the clients of the round sent.
            weighting: ``samples`` weighs a client with its number of samples, ``uniform`` all alike.
        """
        if not updates:
            raise MisconfigurationException("aggregate() got no updates: a round needs at least one client")
        self.begin_round(model)
        for update in updates:
            self.receive(update, weight_of(update, weighting))
        return self.finish_round()

    def result(self, flat: FlatState) -> StateDict:
        """A state dict of the model with the values of ``flat``."""
        return self.layout.unflatten(flat, like=self._start_state)

    @property
    def _dtype(self) -> torch.dtype:
        return exact_dtype(self._device)

    @property
    def _device(self) -> torch.device:
        return next((value.device for value in self._start_state.values()), torch.device("cpu"))


class StreamingAggregator(Aggregator):
    """Sums the clients' states as they come in, in float64.

    A subclass finds the weighted mean in :attr:`mean` and overrides :meth:`finish_round`. One that needs further sums
    of its own keeps them in :attr:`sums`, which is added up over the ranks, and adds to them in :meth:`accumulate`.
    """

    #: weighted sums by name; float64 tensors
    sums: dict[str, Tensor]
    _counters: Tensor

    def begin_round(self, model: nn.Module) -> None:
        super().begin_round(model)
        self.sums = {
            "weight": torch.zeros((), dtype=self._dtype, device=self._device),
            "parameters": torch.zeros_like(self.start.parameters),
            "statistics": torch.zeros_like(self.start.statistics),
        }
        self._counters = _no_counters(self.start)

    def receive(self, update: ClientUpdate, weight: float) -> None:
        self.accumulate(self.layout.flatten(update.state, dtype=self._dtype), update, weight)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        """Adds one client to the sums; ``state`` is the update's, in flat vectors."""
        self.sums["weight"] += weight
        self.sums["parameters"].add_(state.parameters, alpha=weight)
        self.sums["statistics"].add_(state.statistics, alpha=weight)
        torch.maximum(self._counters, state.counters, out=self._counters)

    def reduce(self) -> None:
        for value in self.sums.values():
            sum_over_ranks(value)
        max_over_ranks(self._counters)
        self.store.exchange()

    @property
    def mean(self) -> FlatState:
        """Σ p_k w_k with p_k = weight_k / Σ weight; of the counters, the largest."""
        total = self.sums["weight"]
        return FlatState(self.sums["parameters"] / total, self.sums["statistics"] / total, self._counters)


@dataclass
class Received:
    """An update as a gathered aggregator keeps it: ``state`` in flat vectors, ``update`` without its state."""

    update: ClientUpdate
    weight: float
    state: FlatState


class GatheredAggregator(Aggregator):
    """Keeps the round's updates together, in the order of client numbers, in :attr:`received`."""

    received: list[Received]

    def begin_round(self, model: nn.Module) -> None:
        super().begin_round(model)
        self.received = []

    def receive(self, update: ClientUpdate, weight: float) -> None:
        state = self.layout.flatten(update.state)
        self.received.append(Received(replace(update, state={}), weight, state))
        self.received.sort(key=lambda item: item.update.client)

    def reduce(self) -> None:
        meta = gather_objects([(replace(item.update, metrics={}), item.weight) for item in self.received])
        like = self.layout.flatten(self._start_state)
        parts = [
            gather_rows(_stack([getattr(item.state, part) for item in self.received], getattr(like, part)))
            for part in ("parameters", "statistics", "counters")
        ]
        self.received = [
            Received(update, weight, FlatState(*(rows[row] for rows in parts)))
            for row, (update, weight) in enumerate(meta)
        ]
        self.received.sort(key=lambda item: item.update.client)

    @property
    def weights(self) -> Tensor:
        """p_k, the clients' normalised weights."""
        weights = torch.tensor([item.weight for item in self.received], dtype=self._dtype, device=self._device)
        return weights / weights.sum()

    def mean(self, weights: Tensor) -> FlatState:
        """The mean of parameters and statistics with these weights; of the counters, the largest.

        The weights need not sum to 1: one division after the sum, as in streaming aggregators, gives the same bits.
        """
        parameters = torch.zeros_like(self.start.parameters)
        statistics = torch.zeros_like(self.start.statistics)
        counters = _no_counters(self.start)
        for weight, item in zip(weights.tolist(), self.received, strict=True):
            parameters.add_(item.state.parameters.to(self._dtype), alpha=weight)
            statistics.add_(item.state.statistics.to(self._dtype), alpha=weight)
            counters = torch.maximum(counters, item.state.counters)
        total = weights.sum()
        return FlatState(parameters / total, statistics / total, counters)


def _no_counters(like: FlatState) -> Tensor:
    """What any counter that is received exceeds."""
    return torch.full_like(like.counters, torch.iinfo(torch.int64).min)


def _tensors(model: nn.Module) -> StateDict:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _stack(rows: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(rows) if rows else like.new_zeros(0, like.numel())
