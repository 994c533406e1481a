"""What a client sends to the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fl_lightning.core.state import StateDict


@dataclass
class ClientUpdate:
    """A client's model after local training, and what the server learns about the training.

    Args:
        client: the client's number.
        state: the client's ``state_dict``. An entry that the client did not train and did not change may be the tensor
            of ``Round.start`` itself: replace entries instead of changing them in place.
        num_samples: how many samples it trained on.
        class_counts: how many of them belong to each class, for algorithms that weight classes.
        num_steps: how many optimiser steps it took.
        learning_rate: the learning rate of its last step.
        num_bytes: the size of ``state`` on the wire; by default the size of its tensors. Local training leaves
            out frozen entries that the client did not change.
        unsent: entries of ``state`` that a real client would not send, and that ``num_bytes`` does not count.
        extras: tensors that an algorithm sends along with the state.
        metrics: what the client measured, such as its mean training loss.
        logged: what the client's module logged and :class:`~fl_lightning.client.LocalTraining` was asked to report.
        memory: what the client's callbacks and transforms remember for its next round, by writer. By default, it
            is not sent: in a real federation it stays with the client, in a simulation the server keeps it.
    """

    client: int
    state: Mapping[str, Tensor]
    num_samples: int
    class_counts: Tensor | None = None
    num_steps: int | None = None
    learning_rate: float | None = None
    num_bytes: int | None = None
    unsent: frozenset[str] = frozenset()
    extras: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    logged: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[str, StateDict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_bytes is None:
            self.num_bytes = state_bytes(self.state)


@dataclass(frozen=True)
class LostClient:
    """A client of the round that sent nothing the server can use.

    Args:
        client: the client's number.
        reason: what happened, as the end of the sentence "client 3 failed in round 5: ...", in one line.
        planned: whether the loss is expected, as with ``client.dropout`` or a node that is away. Then
            ``client.on_error`` does not matter.
        error: what its training raised, if that is the reason and happened in this process.
    """

    client: int
    reason: str
    planned: bool = False
    error: Exception | None = field(default=None, compare=False)


def state_bytes(state: Mapping[str, Tensor]) -> int:
    """Return the size of a state on the wire. A tensor that has two names is sent once."""
    return sum({value.data_ptr() or id(value): value.nbytes for value in state.values()}.values())
