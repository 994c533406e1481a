"""Stops the round in which the global model becomes unusable, although every update was finite."""

from collections.abc import Mapping
from math import isfinite, isinf

import torch
from torch import Tensor

from fl_lightning.core.distributed import gather_notes
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.core.soundness import LARGEST, SoundnessCheck, first_outsized


class ModelCheck:
    """Finds out if a round made an entry of the global model infinite, NaN or so large that a network overflows.

    Args:
        number: the round's number, counted from 0.
        check: the check of this rank's updates, which knows who sent large numbers.
        device: device of this rank.
    """

    def __init__(self, number: int, check: SoundnessCheck, device: torch.device) -> None:
        self._round = number + 1
        self._check = check
        self._device = device
        self._found: list[tuple[list[str], Tensor]] = []

    def watch(self, state: Mapping[str, Tensor]) -> None:
        """Look at a new global state. The answer stays on the device."""
        self._found.append(self._check.outsized_model(state))

    def decide(self) -> None:
        """Raise an error if a state is unusable. All ranks call this with the same states. The host waits."""
        entry = next(filter(None, (first_outsized(names, sizes) for names, sizes in self._found)), None)
        self._found.clear()
        if entry is None:
            return
        name, size = entry
        limit = f", but numbers beyond {LARGEST:.2g} overflow" if isfinite(size) else ""
        senders = sorted(gather_notes(self._check.outsized_updates(), self._device))
        if senders:
            client, sent, value = senders[0]
            others = f" and {len(senders) - 1} other{'s' if len(senders) > 2 else ''}" if len(senders) > 1 else ""
            cause = f"client {client}{others} sent such numbers, {value:.2g} in {sent}: set client.on_error to drop, or"
            cause += " server.aggregator to one that withstands bad clients, such as CoordinateMedian"
        else:
            cause = "no client sent such numbers: lower the learning rate of the clients or of the server"
        result = f"as large as {size:.2g}" if isfinite(size) else "infinite" if isinf(size) else "not a number (NaN)"
        raise RoundFailedError(f"round {self._round} would make {name} of the global model {result}{limit}; {cause}")
