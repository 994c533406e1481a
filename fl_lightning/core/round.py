"""A round of the federation, as described to everything that takes part in it."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fl_lightning.core.evaluations import Evaluations
from fl_lightning.core.state import StateDict, copy_into, exact_vector
from fl_lightning.core.update import ClientUpdate


@dataclass(frozen=True)
class Round:
    """One round. Aggregators, transforms, client callbacks and round callbacks all receive it.

    Args:
        number: the round's number, counted from 0.
        num_rounds: how many rounds the run has; None if their number is not limited.
        seed: the run's seed.
        start: the global state that clients start from.
        broadcast: tensors that the server sends along with the global state.
        personal: returns the entries that override the global state when a client starts.
        evaluations: what the validation of the served model showed after earlier rounds.
        num_clients: K, the number of all clients, not only those in the round; None if it is not known.
        memory: returns what a writer, such as a transform, remembers about a client; None if that is not kept.
    """

    number: int
    num_rounds: int | None
    seed: int
    start: StateDict
    broadcast: dict[str, Tensor] = field(default_factory=dict)
    personal: Callable[[int], StateDict] | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    num_clients: int | None = None
    memory: Callable[[str, int], StateDict | None] | None = None
    _last_difference: "_LastDifference" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_last_difference", _LastDifference())

    def start_of(self, client: int) -> StateDict:
        """Return the state that a client starts from: the global state, overridden by the client's own entries."""
        own = self.personal(client) if self.personal is not None else {}
        return {**self.start, **own} if own else self.start

    def remembered(self, writer: str, client: int) -> StateDict:
        """Return the tensors that a writer last put into ``ClientUpdate.memory`` of a client; initially none."""
        return (self.memory(writer, client) if self.memory is not None else None) or {}

    def difference(self, update: ClientUpdate, names: list[str]) -> Tensor:
        """Return Δ_k = w_k - w_t over the named parameters as one vector, in the type for sums (float64).

        It is computed once per update and shared by all callers that pass the same names, so do not change it in place.
        The next client's vector overwrites it, because allocating a large vector can cost more than computing with it.
        """
        return self._last_difference.of(update, names, self)


class _LastDifference:
    """Computes :meth:`Round.difference`, and remembers that of the last client."""

    _names: list[str] | None = None
    _update: Callable[[], ClientUpdate | None] = staticmethod(lambda: None)
    _start: Tensor
    _vector: Tensor

    def of(self, update: ClientUpdate, names: list[str], round: Round) -> Tensor:
        if self._names != names:
            self._start = exact_vector(round.start, names)
            self._vector = torch.empty_like(self._start)
            self._names = names
        elif self._update() is update:
            return self._vector
        self._update = weakref.ref(update)
        start = round.start_of(update.client)
        begin = self._start if start is round.start else exact_vector(start, names)
        return copy_into(self._vector, [update.state[name] for name in names]).sub_(begin)
