"""Checks whether a client's update can be aggregated."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from fl_lightning.core.state import StateLayout
from fl_lightning.core.update import ClientUpdate, LostClient

#: more samples cannot be counted in a tensor
_MOST_SAMPLES = 2**63 - 1


class SoundnessCheck:
    """Finds the updates of one round that would spoil the global model or cannot be aggregated at all.

    An update is sound if it has samples, if its state has the model's entries with their shapes and kinds of numbers,
    and if its state, its extras and its loss are finite. Frozen entries may be missing, which means that the client did
    not change them. An entry that was not finite when the round began, such as a mask of -inf, may stay so. Extras have
    the shapes that the algorithm expects. What the client remembers may be infinite, but not NaN.

    Args:
        layout: the parts of the model's state.
        start: the global state that the clients started from.
        extras: shapes of the extras that the algorithm expects, by name. Extras with other names may have any shape.
        wait: whether to find out at once if an update is finite. On a GPU, this makes the host wait once per client.
            Otherwise, the answers stay on the device until :meth:`confirmed_doubts` reads them.
    """

    def __init__(
        self, layout: StateLayout, start: Mapping[str, Tensor], extras: Mapping[str, torch.Size], wait: bool
    ) -> None:
        self._start = start
        self._extras = extras
        self._wait = wait
        self._required = [*layout.parameters, *layout.statistics, *layout.counters]
        real = {name: value for name, value in start.items() if name not in layout.aliases and _is_real(value)}
        #: for each entry with real numbers, whether it was not finite when the round began
        self._spoilt = dict(zip(real, _not_finite(real).unbind(), strict=True)) if real else {}
        #: by client: the names of tensors and, on the device, whether the client spoilt each of them
        self._doubts: dict[int, tuple[list[str], Tensor]] = {}

    def __call__(self, update: ClientUpdate) -> LostClient | None:
        """Return the client as lost if its update is known to be unsound."""
        problem = self._mismatch(update)
        if problem is None:
            values = self._values(update)
            on_host = {name: value for name, value in values.items() if value.device.type == "cpu"}
            on_device = {name: value for name, value in values.items() if name not in on_host}
            for group in (on_host, on_device) if self._wait else (on_host,):
                if group and not _finite_ends(group).all():
                    problem = problem or _first(*self._spoilt_by(group))
            if on_device and not self._wait:
                self._doubts[update.client] = self._spoilt_by(on_device)
        return None if problem is None else LostClient(update.client, problem)

    def num_doubts(self) -> Tensor | None:
        """Return how many clients sent values that are not finite, as a tensor, so that the host need not wait."""
        return torch.stack([flags.any() for _, flags in self._doubts.values()]).sum() if self._doubts else None

    def confirmed_doubts(self) -> list[LostClient]:
        """Return the clients that sent values that are not finite. The host waits for the device."""
        problems = {client: _first(*doubt) for client, doubt in self._doubts.items()}
        return [LostClient(client, problem) for client, problem in problems.items() if problem is not None]

    def _mismatch(self, update: ClientUpdate) -> str | None:
        """Return what prevents the update from being aggregated, judging by everything but its values."""
        if not 1 <= update.num_samples <= _MOST_SAMPLES:  # NaN is in no range
            return f"it has {str(update.num_samples)[:40]} samples"
        if update.learning_rate is not None and not isfinite(update.learning_rate):
            return "its learning rate is not finite"
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
                return f"{name} is of type {value.dtype}, not {expected.dtype}"
        for name, shape in self._extras.items():
            if name in update.extras and update.extras[name].shape != shape:
                return f"extras[{name!r}] has shape {list(update.extras[name].shape)}, not {list(shape)}"
        return None

    def _values(self, update: ClientUpdate) -> dict[str, Tensor]:
        """Return the tensors that must be finite, without entries that the client did not send or change."""
        state = {name: update.state[name] for name in self._spoilt if name in update.state}
        values = {name: value for name, value in state.items() if value is not self._start[name]}
        values |= {f"extras[{name!r}]": value for name, value in update.extras.items() if _is_real(value)}
        if "loss" in update.metrics:
            values["its loss"] = update.metrics["loss"]
        for writer, memory in update.memory.items():
            for name, value in memory.items():
                if _is_real(value):  # such as a loss of inf before the first step, or a personal mask of -inf
                    values[f"{name!r} in the memory of {writer}"] = value.nan_to_num(torch.nan, posinf=0, neginf=0)
        return values

    def _spoilt_by(self, values: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
        """Return the names of the values and, for each, whether it became infinite or NaN in this round."""
        flags = _not_finite(values)
        known = [self._spoilt[name] for name in values if name in self._spoilt]
        if known:
            flags[: len(known)] &= ~torch.stack(known).to(flags.device)
        return list(values), flags


def _finite_ends(values: Mapping[str, Tensor]) -> Tensor:
    """Return whether the smallest and the largest number of each tensor are finite: both are NaN if any number is."""
    tensors = [value.detach() if value.numel() else value.new_zeros(1) for value in values.values()]
    return torch.stack([end for tensor in tensors for end in torch.aminmax(tensor)]).isfinite()


def _not_finite(values: Mapping[str, Tensor]) -> Tensor:
    """Return for each tensor whether it holds an infinite value or NaN."""
    return ~_finite_ends(values).view(-1, 2).all(1)


def _first(names: list[str], flags: Tensor) -> str | None:
    """Return a message that names the first tensor that is not finite; None if all are finite."""
    numbers = flags.nonzero()
    return f"{names[int(numbers[0])]} is not finite" if len(numbers) else None


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() and value.itemsize > 1  # torch does not compare 8-bit numbers


def _kind(value: Tensor) -> str:
    """Return the kind of a tensor's numbers. A client that trains in 16 bits may send 16 bits."""
    if value.dtype == torch.bool:
        return "boolean"
    return "complex" if value.is_complex() else "real" if value.is_floating_point() else "integer"
