"""How many bytes a round sends from the server to its clients."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fl_lightning.core.state import StateDict, StateLayout, is_unchanged
from fl_lightning.core.update import state_bytes


class Downloads:
    """Counts what clients must be sent: the whole model the first time, later only what the run has changed.

    A frozen backbone that no client ever changes is therefore sent to each client once.
    """

    def __init__(self) -> None:
        #: whether each client holds a model, up to the largest client number that has taken part
        self._holders = torch.zeros(0, dtype=torch.bool)
        self._moved: set[str] = set()
        self._rest: Sequence[str] = ()
        self._first = self._again = 0

    def begin_round(self, start: Mapping[str, Tensor], broadcast: Mapping[str, Tensor], layout: StateLayout) -> None:
        """Start a round.

        Args:
            start: the global state that clients start from.
            broadcast: tensors that the server sends along with it.
            layout: the parts of the state. The parts that training changes are always sent.
        """
        self._rest = layout.rest
        names = {*layout.parameters, *layout.statistics, *layout.counters, *self._moved}
        extra = state_bytes(broadcast)
        self._first = state_bytes(start) + extra
        self._again = state_bytes({name: start[name] for name in start if name in names}) + extra

    def size(self, client: int) -> int:
        """Return how many bytes a client receives in this round."""
        return self._again if client < len(self._holders) and self._holders[client] else self._first

    def end_round(self, clients: Iterable[int], start: StateDict, new: StateDict) -> None:
        """Note the clients that now hold a model, and the entries of the global state that changed."""
        self._add_holders(list(clients))
        self._moved |= {
            name
            for name in self._rest
            if name in new and name not in self._moved and not is_unchanged(new[name], start.get(name))
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint keeps."""
        return {"holders": self._holders.nonzero().flatten(), "moved": sorted(self._moved)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._holders = self._holders[:0]
        holders = state_dict["holders"]
        if holders.ndim != 1 or holders.is_floating_point() or (holders < 0).any():
            raise TypeError("holders is not a vector of clients")
        self._add_holders(holders)
        self._moved = set(state_dict["moved"])

    def _add_holders(self, clients: Sequence[int] | Tensor) -> None:
        numbers = torch.as_tensor(clients, dtype=torch.int64)
        if len(numbers):
            missing = int(numbers.max()) + 1 - len(self._holders)
            self._holders = functional.pad(self._holders, (0, max(missing, 0)))
            self._holders[numbers] = True
