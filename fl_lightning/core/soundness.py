"""Whether what a client sent can be aggregated."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_lightning.core.state import StateLayout
from fl_lightning.core.update import ClientUpdate, LostClient


class SoundnessCheck:
    """Finds updates of a round that would spoil the global model or cannot be aggregated at all.

    An update is sound if it has samples, if its state has the model's entries with their shapes and kinds of numbers,
    and if its state, its extras and its loss are finite. Entries of the model that were not finite before, such as a
    mask of -inf, may stay so. Frozen entries may be missing, which means that the client did not change them.

    Args:
        layout: the parts of the model's state.
        start: the global state that the clients started from.
        wait: whether to find out at once whether an update is finite. On a GPU, the host waits for that, once per
            client. Otherwise, :attr:`doubts` collects the answers on the device.

    Attributes:
        doubts: by client, for each of the names, whether the value is not finite. Empty if ``wait`` is true.
    """

    def __init__(self, layout: StateLayout, start: Mapping[str, Tensor], wait: bool) -> None:
        self._start = start
        self._wait = wait
        self._required = [*layout.parameters, *layout.statistics, *layout.counters]
        self._aliases = layout.aliases
        real = [name for name, value in start.items() if name not in layout.aliases and _is_real(value)]
        spoilt = _not_finite({name: start[name] for name in real})
        #: for each real entry, whether it was not finite at the start
        self._spoilt = dict(zip(real, spoilt.unbind(), strict=True)) if real else {}
        self.doubts: dict[int, tuple[list[str], Tensor]] = {}

    def __call__(self, update: ClientUpdate) -> LostClient | None:
        """Return the client as lost if its update is unsound. Without ``wait``, infinite values are left as doubts."""
        problem = self._mismatch(update)
        if problem is None:
            names, flags = self._infinite(update)
            if not self._wait:
                self.doubts[update.client] = names, flags
            elif flags.any():
                problem = _first_infinite(names, flags)
        return None if problem is None else LostClient(update.client, problem)

    def num_doubts(self) -> Tensor | None:
        """Return the number of clients whose updates turned out not to be finite, without waiting for it."""
        return torch.stack([flags.any() for _, flags in self.doubts.values()]).sum() if self.doubts else None

    def confirmed_doubts(self) -> list[LostClient]:
        """Return the clients whose updates turned out not to be finite. The host waits for the device."""
        return [
            LostClient(client, _first_infinite(names, flags))
            for client, (names, flags) in self.doubts.items()
            if flags.any()
        ]

    def _mismatch(self, update: ClientUpdate) -> str | None:
        """Say what prevents the update from being aggregated, as far as that shows without reading values."""
        if update.num_samples < 1:
            return f"it reports {update.num_samples} samples"
        for name in self._required:
            if name not in update.state:
                return f"its state lacks {name}"
        for name, value in update.state.items():
            expected = self._start.get(name)
            if expected is None:
                return f"its state has {name}, which the model does not have"
            if value.shape != expected.shape:
                return f"{name} has shape {list(value.shape)}, not {list(expected.shape)}"
            if _kind(value) != _kind(expected):
                return f"{name} holds {value.dtype} numbers, not {expected.dtype}"
        return None

    def _infinite(self, update: ClientUpdate) -> tuple[list[str], Tensor]:
        """Return names and, for each, whether the client made the value infinite or NaN."""
        state = {
            name: value
            for name, value in update.state.items()
            if name in self._spoilt and value is not self._start[name]
        }
        sent = {f"extras[{name!r}]": value for name, value in update.extras.items() if _is_real(value)}
        sent |= {f"its {name}": value for name, value in update.metrics.items() if name == "loss"}
        flags = _not_finite({**state, **sent})
        if state:
            flags[: len(state)] &= ~torch.stack([self._spoilt[name] for name in state])
        return [*state, *sent], flags


def _not_finite(values: Mapping[str, Tensor]) -> Tensor:
    """Return for each tensor whether it holds an infinite value or NaN, in one pass over its values."""
    if not values:
        return torch.zeros(0, dtype=torch.bool)
    device = next(iter(values.values())).device
    ends = [
        torch.stack(torch.aminmax(value.detach())).to(device, torch.float64)
        if value.numel()
        else torch.zeros(2, dtype=torch.float64, device=device)
        for value in values.values()
    ]
    return ~torch.stack(ends).isfinite().all(1)


def _first_infinite(names: list[str], flags: Tensor) -> str:
    return f"{names[int(flags.nonzero()[0])]} is not finite"


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() and value.itemsize > 1  # torch does not compare 8-bit numbers


def _kind(value: Tensor) -> str:
    """Return the kind of a tensor's numbers. A client that trains in 16 bits may send 16 bits."""
    if value.dtype == torch.bool:
        return "boolean"
    return "complex" if value.is_complex() else "real" if value.is_floating_point() else "integer"
