"""Checks whether a client's update can be aggregated."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from fl_lightning.core.state import StateLayout
from fl_lightning.core.update import ClientUpdate, LostClient

#: Larger numbers overflow as soon as a network multiplies two of them: their square is beyond float32.
LARGEST = 1.8e19
#: more samples cannot be counted in a tensor
_MOST_SAMPLES = 2**63 - 1


class SoundnessCheck:
    """Finds the updates of one round that would spoil the global model or cannot be aggregated at all.

    An update is sound if it has samples, if its state has the model's entries with their shapes and kinds of numbers,
    and if its state, its extras and its loss are finite. Frozen entries may be missing, which means that the client did
    not change them. An entry that was not finite when the round began, such as a mask of -inf, may stay so. Extras have
    the shapes that the algorithm expects. What the client remembers may be infinite, but not NaN.

    Numbers beyond :data:`LARGEST` are finite, but ruin an average. A robust aggregator leaves them out, so they make an
    update unsound only if clients may be dropped, or in extras that the algorithm expects. Otherwise,
    :meth:`outsized_model` finds out whether they did harm.

    Args:
        layout: the parts of the model's state.
        start: the global state that the clients started from.
        extras: shapes of the extras that the algorithm expects, by name. Extras with other names may have any shape.
        wait: whether to find out at once if an update is finite. On a GPU, this makes the host wait once per client.
            Otherwise, the answers stay on the device until :meth:`confirmed_doubts` reads them.
        bounded: whether an update with numbers beyond :data:`LARGEST` is unsound.
    """

    def __init__(
        self,
        layout: StateLayout,
        start: Mapping[str, Tensor],
        extras: Mapping[str, torch.Size],
        wait: bool,
        bounded: bool = False,
    ) -> None:
        self._start = start
        self._extras = extras
        self._wait = wait
        self._required = [*layout.parameters, *layout.statistics, *layout.counters]
        real = {name: value for name, value in start.items() if name not in layout.aliases and _is_real(value)}
        self._bounded = bounded
        #: the largest number, in either direction, in each entry with real numbers when the round began
        self._sizes = dict(zip(real, _sizes(real).unbind(), strict=True)) if real else {}
        #: by client: the names of tensors and, on the device, their largest numbers and whether each is unsound
        self._doubts: dict[int, tuple[list[str], Tensor, Tensor]] = {}
        #: by client: the names of tensors, and those of their largest numbers that are beyond LARGEST, or else 0
        self._outsized: dict[int, tuple[list[str], Tensor]] = {}

    def __call__(self, update: ClientUpdate) -> LostClient | None:
        """Return the client as lost if its update is known to be unsound."""
        problem = self._mismatch(update)
        if problem is None:
            values = self._values(update)
            on_host = {name: value for name, value in values.items() if value.device.type == "cpu"}
            on_device = {name: value for name, value in values.items() if name not in on_host}
            for group in (on_host, on_device) if self._wait else (on_host,):
                sizes = _sizes(group) if group else torch.zeros(0)
                if not (sizes <= LARGEST).all():
                    problem = problem or self._problem(update.client, list(group), sizes)
            if on_device and not self._wait:
                names, sizes = list(on_device), _sizes(on_device)
                self._doubts[update.client] = names, sizes, self._unsound(names, sizes)
                self._outsized[update.client] = names, self._beyond(names, sizes)
        return None if problem is None else LostClient(update.client, problem)

    def num_doubts(self) -> Tensor | None:
        """Return how many clients sent unsound values, as a tensor, so that the host need not wait."""
        return torch.stack([flags.any() for *_, flags in self._doubts.values()]).sum() if self._doubts else None

    def confirmed_doubts(self) -> list[LostClient]:
        """Return the clients that sent unsound values. The host waits for the device."""
        problems = {client: _first(*doubt) for client, doubt in self._doubts.items()}
        return [LostClient(client, problem) for client, problem in problems.items() if problem is not None]

    def outsized_model(self, state: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
        """Return the names of a new global model's entries and, on the device, what is wrong with each of them.

        That is its largest number if it is beyond :data:`LARGEST` or not finite, and was not when the round began;
        otherwise 0.
        """
        values = {name: state[name] for name in self._sizes if name in state}
        return list(values), self._beyond(list(values), _sizes(values)) if values else torch.zeros(0)

    def outsized_updates(self) -> list[tuple[int, str, float]]:
        """Return the clients that sent numbers beyond :data:`LARGEST`: the first such entry and its largest number.

        The host waits for the device.
        """
        found = [(client, first_outsized(*entries)) for client, entries in self._outsized.items()]
        return [(client, *entry) for client, entry in found if entry is not None]

    def _problem(self, client: int, names: list[str], sizes: Tensor) -> str | None:
        """Return why an update is unsound, given the largest numbers of its tensors, or note that it is outsized."""
        problem = _first(names, sizes, self._unsound(names, sizes))
        if problem is None:
            self._outsized[client] = names, self._beyond(names, sizes)
        return problem

    def _mismatch(self, update: ClientUpdate) -> str | None:
        """Return what prevents the update from being aggregated, judging by everything but its values."""
        if not 1 <= update.num_samples <= _MOST_SAMPLES:  # NaN is in no range
            return f"it has {str(update.num_samples)[:40]} samples"
        if update.learning_rate is not None and not isfinite(update.learning_rate):
            return "its learning rate is not finite"
        extras = {f"extras[{name!r}]": value for name, value in update.extras.items()}
        remembered = {
            f"{name!r} in the memory of {writer}": value
            for writer, memory in update.memory.items()
            for name, value in memory.items()
        }
        loss = {"its loss": update.metrics["loss"]} if "loss" in update.metrics else {}
        for name, value in {**update.state, **extras, **remembered, **loss}.items():
            if not isinstance(value, Tensor):
                return f"{name} is of type {type(value).__name__}, not a tensor"
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
            if name in update.extras and _kind(update.extras[name]) not in ("real", "integer"):
                return (
                    f"extras[{name!r}] is of type {update.extras[name].dtype}, but the algorithm expects real numbers"
                )
        return None

    def _values(self, update: ClientUpdate) -> dict[str, Tensor]:
        """Return the tensors that must be finite, without entries that the client did not send or change."""
        state = {name: update.state[name] for name in self._sizes if name in update.state}
        values = {name: value for name, value in state.items() if value is not self._start[name]}
        values |= {f"extras[{name!r}]": value for name, value in update.extras.items() if _is_real(value)}
        if "loss" in update.metrics:
            values["its loss"] = update.metrics["loss"]
        for writer, memory in update.memory.items():
            for name, value in memory.items():
                if _is_real(value):  # such as a loss of inf before the first step, or a personal mask of -inf
                    values[f"{name!r} in the memory of {writer}"] = value.nan_to_num(torch.nan, posinf=0, neginf=0)
        return values

    def _unsound(self, names: list[str], sizes: Tensor) -> Tensor:
        """Return whether each tensor became infinite, NaN or, where that matters, too large for the algorithm."""
        unsound = ~sizes.isfinite() & self._before(names, sizes).isfinite()
        expected = {f"extras[{name!r}]" for name in self._extras} | (self._sizes.keys() if self._bounded else set())
        for place, name in enumerate(names):
            if name in expected:
                unsound[place] |= ~(sizes[place] <= LARGEST) & (self._before([name], sizes)[0] <= LARGEST)
        return unsound

    def _beyond(self, names: list[str], sizes: Tensor) -> Tensor:
        """Return the largest number of each entry of the state that grew beyond LARGEST in this round, or 0."""
        grown = ~(sizes <= LARGEST) & (self._before(names, sizes) <= LARGEST)
        grown[sum(name in self._sizes for name in names) :] = False  # entries of the state come first
        return torch.where(grown, sizes, 0)

    def _before(self, names: list[str], sizes: Tensor) -> Tensor:
        """Return the largest numbers when the round began; 0 for tensors that are not part of the model."""
        zero = sizes.new_zeros(())
        return torch.stack([self._sizes[name].to(sizes) if name in self._sizes else zero for name in names])


def first_outsized(names: list[str], sizes: Tensor) -> tuple[str, float] | None:
    """Return the first entry with a number beyond :data:`LARGEST`, and the number. The host waits for the device."""
    return next(((name, size) for name, size in zip(names, sizes.tolist(), strict=True) if size != 0), None)


def _sizes(values: Mapping[str, Tensor]) -> Tensor:
    """Return the largest absolute number in each tensor, which is NaN if any number is."""
    tensors = [value.detach() if value.numel() else value.new_zeros(1) for value in values.values()]
    ends = torch.stack([end for tensor in tensors for end in torch.aminmax(tensor)])
    return ends.abs().view(-1, 2).amax(1)


def _first(names: list[str], sizes: Tensor, flags: Tensor) -> str | None:
    """Return a message that names the first unsound tensor; None if all are sound."""
    numbers = flags.nonzero()
    if not len(numbers):
        return None
    name, size = names[int(numbers[0])], float(sizes[int(numbers[0])])
    return (
        f"{name} holds {size:.2g}, and numbers beyond {LARGEST:.2g} overflow"
        if isfinite(size)
        else f"{name} is not finite"
    )


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() and value.itemsize > 1  # torch does not compare 8-bit numbers


def _kind(value: Tensor) -> str:
    """Return the kind of a tensor's numbers. A client that trains in 16 bits may send 16 bits."""
    if value.dtype == torch.bool:
        return "boolean"
    return "complex" if value.is_complex() else "real" if value.is_floating_point() else "integer"
