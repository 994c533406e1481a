"""What a client sends to the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class ClientUpdate:
    """A client's model after local training, and what the server may know of how it came about.

    Args:
        client: the client's number.
        state: the client's ``state_dict``.
        num_samples: how many samples it trained on.
        class_counts: how many of them per class, for algorithms that weigh classes.
        num_steps: how many optimiser steps it took.
        learning_rate: that of its last step.
        num_bytes: what ``state`` takes on the wire; by default its size.
        extras: what an algorithm sends beside the state.
        metrics: what the client measured, such as its mean training loss.
    """

    client: int
    state: Mapping[str, Tensor]
    num_samples: int
    class_counts: Tensor | None = None
    num_steps: int | None = None
    learning_rate: float | None = None
    num_bytes: int | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_bytes is None:
            self.num_bytes = state_bytes(self.state)


def state_bytes(state: Mapping[str, Tensor]) -> int:
    """The size of a state on the wire; a tensor that stands under two names goes once."""
    return sum({value.data_ptr() or id(value): value.nbytes for value in state.values()}.values())
