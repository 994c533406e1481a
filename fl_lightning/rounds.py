"""What clients may know of the round they train in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from fl_lightning.state import StateDict
from fl_lightning.store import ClientStore


@dataclass(frozen=True)
class Round:
    """A round as the clients see it.

    Args:
        number: counted from 0.
        num_rounds: how many the run has; None if rounds do not limit it.
        seed: the run's seed.
        start: the global state that the clients start from.
        broadcast: what the server sends beside it.
        personal: those entries of a client's start that are its own, by client.
        store: what is remembered of each client.
    """

    number: int
    num_rounds: int | None
    seed: int
    start: StateDict
    broadcast: dict[str, Tensor] = field(default_factory=dict)
    personal: Callable[[int], StateDict] | None = None
    store: ClientStore = field(default_factory=ClientStore)

    def start_of(self, client: int) -> StateDict:
        """Where a client starts: the global state, but for the entries that are its own."""
        return self.start if self.personal is None else {**self.start, **self.personal(client)}
