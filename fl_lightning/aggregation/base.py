"""The server's half of an algorithm: how the clients' updates of a round become the next global model.

An aggregator is called in this order, once per round::

    begin_round(model, round) -> receive(update, weight) for each client -> reduce() -> finish_round()

``reduce`` combines what the ranks of a distributed run received, so that every rank then computes the same result.
Streaming aggregators keep only sums, so their memory does not grow with the number of clients. Split aggregators keep
the updates of the round: each rank keeps its own clients' updates. Gathered aggregators have all updates on every rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.aggregation.changed_entries import ChangedEntries
from fl_lightning.client import ClientCallback, LocalTraining
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict, StateLayout, exact_dtype, snapshot
from fl_lightning.core.store import ClientMemory, ClientStore
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
        """How many clients take part in the first round; None if the selection is not known."""
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
    #: how entries that clients changed without gradients are combined
    changed_entries: type[ChangedEntries] = ChangedEntries
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
        """Prepare for a run, before its first round. Override this to reject what the algorithm does not support."""
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
        """Start a round, before any client trains. ``model`` holds ``round.start``, which the clients start from."""
        self.round = round
        if self.federation is None:
            self.layout = StateLayout(model)
        self.start_state = round.start
        self._start = None
        self._changed = self.changed_entries(self.layout.rest, round.start, self.dtype)

    @abstractmethod
    def receive(self, update: ClientUpdate, weight: float) -> None:
        """Take in one client's update as soon as the client is done. ``weight`` is not normalised: n_k, or 1."""

    @abstractmethod
    def reduce(self) -> None:
        """Combine what the ranks received. Called on every rank when its clients are done."""

    @abstractmethod
    def finish_round(self) -> Aggregate:
        """Return the next global model. Called last, on every rank."""

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

    def kept_vector(self, kept: Tensor | None, name: str) -> Tensor:
        """Return a vector that the algorithm keeps between rounds, with one number per parameter; zeros at first.

        Args:
            kept: what the algorithm kept in the last round, possibly read from a checkpoint; None if there was none.
            name: what it is, for an error message.

        Raises:
            MisconfigurationError: if it is missing after the first round, or has another size than the parameters that
                are trained now.
        """
        size = len(self.start.parameters)
        if kept is None:
            if self.federation is not None and self.round.number > 0:
                raise MisconfigurationError(
                    f"the checkpoint lacks the {name} of {type(self).__name__}: resume from another one"
                )
            return torch.zeros_like(self.start.parameters)
        if kept.shape != (size,):
            raise MisconfigurationError(
                f"the {name} that {type(self).__name__} kept has shape {list(kept.shape)}, but the model trains {size}"
                " parameters: resume with the model that the run had, and with the same layers frozen"
            )
        return kept.to(self.start.parameters)

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


def no_counters(like: FlatState) -> Tensor:
    """Return the smallest possible counters, which any received counter replaces."""
    return torch.full_like(like.counters, torch.iinfo(torch.int64).min)
