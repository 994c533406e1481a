"""The server's half of an algorithm: how the clients' updates of a round become the next global model.

An aggregator is called in this order, once per round::

    begin_round(model, round) -> receive(update, weight) for each client -> reduce() -> finish_round()

``reduce`` combines what the ranks of a distributed run received, so that every rank then computes the same result.
Streaming aggregators keep only sums, so their memory does not grow with the number of clients. Split aggregators keep
the updates of the round; each rank keeps those of its own clients. Gathered aggregators have all of them on every rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.aggregation.changed_entries import ChangedEntries
from fl_lightning.client import ClientCallback, LocalTraining
from fl_lightning.core.distributed import gather_messages, gather_notes, is_distributed, max_over_ranks, sum_over_ranks
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict, StateLayout, exact_dtype, snapshot
from fl_lightning.core.store import ClientMemory, ClientStore
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.data import Selection

Weighting = Literal["samples", "uniform"]


def weight_of(update: ClientUpdate, weighting: Weighting) -> float:
    """Return an update's weight before normalisation: n_k, or 1 for every client."""
    return float(update.num_samples) if weighting == "samples" else 1.0


@dataclass(frozen=True)
class Federation:
    """What an aggregator learns about the run before the first round.

    Args:
        num_clients: K, the number of all clients, not only those in a round.
        seed: the run's seed.
        weighting: how clients are weighted.
        optimizer: makes the server's optimiser; None if the aggregate becomes the global model unchanged.
        local_training: how clients train.
        selection: which clients take part in a round; None if it is not known.
    """

    num_clients: int
    seed: int
    weighting: Weighting = "samples"
    optimizer: Callable[..., Optimizer] | None = None
    local_training: LocalTraining | None = None
    selection: Selection | None = None

    @property
    def clients_per_round(self) -> int | None:
        """How many clients take part in the first round; None if it is not known."""
        if self.selection is None:
            return None
        return len(self.selection.cohort(self.num_clients, self.seed, 0))


@dataclass
class Aggregate:
    """The result of a round.

    Args:
        state: the state from which the clients continue.
        served_state: the state that is evaluated and saved; the same as ``state`` unless the algorithm has two models.
        metrics: values to log, by tag.
    """

    state: StateDict
    served_state: StateDict = None  # type: ignore[assignment]
    metrics: dict[str, float | Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.served_state is None:
            self.served_state = self.state


class Aggregator(ABC):
    """Base class of all aggregators. Derive from :class:`StreamingAggregator`, :class:`SplitAggregator` or
    :class:`GatheredAggregator`.

    Attributes:
        federation: the run that the aggregator is part of; None outside a Trainer.
        round: the current round.
        layout: where each tensor of the model's state is in the flat vectors. In a run it does not change, so that
            vectors of different rounds are compatible; a parameter that is unfrozen later stays in ``layout.rest``.
        start_state: the global state that the clients of this round started from.
    """

    #: whether a round without clients has no result
    needs_clients = True
    #: whether clients must tell the server how many samples of each class they have
    needs_class_counts = False
    federation: Federation | None = None
    round: Round
    layout: StateLayout
    start_state: StateDict
    _start: FlatState | None = None
    _changed: ChangedEntries

    @cached_property
    def memory(self) -> ClientMemory:
        """Tensors that the algorithm keeps for each client: in the server's store, or in a new one outside a run."""
        return ClientStore().part(type(self).__name__)

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        """Called once, before the first round. Override it to reject what the algorithm does not support."""
        self.federation = federation
        self.layout = StateLayout(model)
        selection = federation.selection
        if self.needs_clients and selection is not None and selection.may_be_empty:
            raise MisconfigurationError(
                f"{type(selection).__name__} may select no client at all, which leaves {type(self).__name__} nothing to"
                " aggregate: set data.selection to RandomClients, or server.aggregator to DPFedAvg"
            )

    def client_callbacks(self) -> list[ClientCallback]:
        """Return the client's half of the algorithm: callbacks that are added to every client's Trainer."""
        return []

    def broadcast(self) -> dict[str, Tensor]:
        """Return the tensors that are sent to the clients along with the model; called after :meth:`begin_round`."""
        return {}

    def extras_shapes(self) -> dict[str, torch.Size]:
        """Return the shapes of what the client's half sends along, by name; called after :meth:`begin_round`.

        A client whose extras have other shapes has failed. By default, shapes are not checked.
        """
        return {}

    def personal_state(self, client: int) -> StateDict:
        """Return the entries that override the global state when this client starts."""
        return {}

    def resize(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Give the model the widths of a state before it is loaded. Override it if the algorithm changes widths."""

    def begin_round(self, model: nn.Module, round: Round) -> None:
        """Called before any client trains. ``model`` holds the state that the clients start from, ``round.start``."""
        self.round = round
        if self.federation is None:
            self.layout = StateLayout(model)
        self.start_state = round.start
        self._start = None
        self._changed = ChangedEntries(self.layout.rest, round.start, self.dtype)

    @abstractmethod
    def receive(self, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done. ``weight`` is not normalised: n_k, or 1."""

    @abstractmethod
    def reduce(self) -> None:
        """Called on every rank when its clients are done. Combines what the ranks received."""

    @abstractmethod
    def finish_round(self) -> Aggregate:
        """Called last, on every rank. Returns the next global model."""

    @property
    @abstractmethod
    def mean(self) -> FlatState:
        """Σ p_k w_k with p_k = weight_k / Σ weight, and the largest counters. Available after :meth:`reduce`."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the algorithm keeps from round to round: only plain types and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""

    def aggregate(
        self, model: nn.Module, updates: Sequence[ClientUpdate], weighting: Weighting = "samples", round: int = 0
    ) -> Aggregate:
        """Run one whole round outside a Trainer.

        Args:
            model: holds the state that the clients started from; it is not changed.
            updates: what the clients of the round sent.
            weighting: ``samples`` weights a client by its number of samples, ``uniform`` weights all clients equally.
            round: the round's number, counted from 0; some algorithms seed random numbers with it.
        """
        if not updates:
            raise MisconfigurationError("aggregate() got no updates: a round needs at least one client")
        self.begin_round(model, Round(round, None, self.seed, snapshot(model)))
        for update in updates:
            self.receive(update, weight_of(update, weighting))
        return self.finish_round()

    def result(self, flat: FlatState) -> StateDict:
        """Return a state dict of the model with the values of ``flat``, and what clients changed without gradients."""
        return self.layout.unflatten(flat, like={**self.start_state, **self._changed.values()})

    @property
    def start(self) -> FlatState:
        """The state that the clients of this round started from, as flat vectors of type :attr:`dtype`."""
        if self._start is None:
            self._start = self.layout.flatten(self.start_state, dtype=self.dtype)
        return self._start

    @property
    def num_clients(self) -> int | None:
        """K, the number of all clients; None outside a run."""
        return None if self.federation is None else self.federation.num_clients

    @property
    def seed(self) -> int:
        """The run's seed; 0 outside a run."""
        return 0 if self.federation is None else self.federation.seed

    @property
    def dtype(self) -> torch.dtype:
        """The data type in which sums are computed."""
        return exact_dtype(self.device)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return next((value.device for value in self.start_state.values()), torch.device("cpu"))


class StreamingAggregator(Aggregator):
    """Sums the clients' states as they come in, in float64.

    A subclass reads the weighted mean from :attr:`mean` and overrides :meth:`finish_round`. If it needs further sums,
    it keeps them in :attr:`sums`, which :meth:`reduce` sums over the ranks, and adds to them in :meth:`accumulate`.

    Attributes:
        sums: weighted sums by name, float64 tensors.
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
        self._counters = _no_counters(zeros)
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
    """Keeps the updates of the round until it ends; in a distributed run, each rank keeps those of its own clients.

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

    def rows_of_all(self, rows: Sequence[Tensor], width: int) -> Tensor:
        """Return one row per client of the round, on every rank.

        Args:
            rows: one vector of ``width`` numbers for each client in ``received``.
            width: the number of columns, which a rank without clients must know too.
        """
        own = torch.stack(list(rows)).to(self.dtype) if rows else self.sizes.new_zeros(0, width)
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
        """Return the mean of parameters and statistics with the given weights, and the largest counters.

        The weights need not sum to 1: dividing once after the sum gives the same bits as a streaming aggregator.
        """
        return FlatState(
            self.mean_of("parameters", weights), self.mean_of("statistics", weights), self.largest_counters
        )

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
    def largest_counters(self) -> Tensor:
        """The largest value of each counter."""
        counters = _no_counters(self.layout.zeros(self.dtype, self.device))
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
    """Keeps all updates of the round until it ends; in a distributed run, every rank gets those of all clients.

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


def _no_counters(like: FlatState) -> Tensor:
    """Return the smallest possible counters, which any received counter replaces."""
    return torch.full_like(like.counters, torch.iinfo(torch.int64).min)


def _to_note(item: Participant) -> dict[str, Any]:
    """Return what JSON can hold of an update, without what only its own rank needs: metrics and logged values."""
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
