"""A round of the federation, as described to everything that takes part in it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fl_lightning.core.evaluations import Evaluations
from fl_lightning.core.state import StateDict
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

    def start_of(self, client: int) -> StateDict:
        """Return the state that a client starts from: the global state, overridden by the client's own entries."""
        own = self.personal(client) if self.personal is not None else {}
        return {**self.start, **own} if own else self.start

    def remembered(self, writer: str, client: int) -> StateDict:
        """Return the tensors that a writer last put into ``ClientUpdate.memory`` of a client; initially none."""
        return (self.memory(writer, client) if self.memory is not None else None) or {}

    def difference(self, update: ClientUpdate, names: list[str]) -> Tensor:
        """Return Δ_k = w_k - w_t over the named parameters as one vector, in at least float32.

        It is computed once per update and shared by all callers that pass the same names, so do not change it in place.
        """
        return update.difference_from(self.start_of, names)
