"""Entries that training moves without gradients: frozen parameters and boolean buffers that a client changed.

A mean teacher, BYOL's momentum encoder and a layer that a callback unfreezes are frozen parameters to the server, and
so is a backbone that nobody touches. Comparing tells them apart: an entry that no client changed keeps the global value
bit for bit and is never summed or exchanged between processes.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fl_lightning.core.distributed import is_distributed, max_over_ranks, sum_over_ranks
from fl_lightning.core.state import StateDict, is_unchanged
from fl_lightning.core.transfer import to_device


class ChangedEntries:
    """Combines the clients' values of the entries that at least one client of the round changed.

    Floating-point entries become the weighted mean, boolean ones the value with more than half of the weight (the
    global value in a tie), and integer ones the largest value. A client that left an entry alone takes part with the
    global value.

    Args:
        names: the entries to watch.
        start: the global state that the clients started from.
        dtype: the type of the sums.
    """

    def __init__(self, names: Iterable[str], start: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.names = list(names)
        self.start = start
        self.dtype = dtype
        self._total = 0.0
        #: by entry, the sum over the clients that changed it (the largest value of integers), and their weight
        self._sums: StateDict = {}
        self._weights: dict[str, float] = {}

    def add(self, state: Mapping[str, Tensor], weight: float) -> None:
        """Add one client. Entries that ``state`` lacks are unchanged."""
        self._total += weight
        for name in self.names:
            value, start = state.get(name), self.start[name]
            if value is None or is_unchanged(value, start):
                continue
            if name not in self._sums:
                self._sums[name] = self._nothing(start)
            self._weights[name] = self._weights.get(name, 0.0) + weight
            if _is_integer(start):
                self._sums[name] = torch.maximum(self._sums[name], value.detach())
            else:
                self._sums[name].add_(as_real(value.detach()), alpha=weight)

    def reduce(self) -> None:
        """Combine what the ranks of a distributed run received; each may have seen different entries change."""
        if not self.names or not is_distributed():
            return
        device = self.start[self.names[0]].device
        changed = [float(name in self._sums) for name in self.names]
        weights = [self._weights.get(name, 0.0) for name in self.names]
        numbers = to_device(torch.tensor([self._total, *changed, *weights], dtype=self.dtype), device)
        sum_over_ranks(numbers)
        self._total, *rest = numbers.tolist()
        changed, weights = rest[: len(self.names)], rest[len(self.names) :]
        self._weights = {name: weight for name, weight, any_ in zip(self.names, weights, changed, strict=True) if any_}
        self._sums = {name: self._sums.get(name, self._nothing(self.start[name])) for name in self._weights}
        sum_over_ranks(*(value for name, value in self._sums.items() if not _is_integer(self.start[name])))
        max_over_ranks(*(value for name, value in self._sums.items() if _is_integer(self.start[name])))

    def values(self) -> StateDict:
        """Return the new value of each entry that a client changed."""
        return {name: self._combined(name) for name in self._sums}

    def _combined(self, name: str) -> Tensor:
        start, received = self.start[name], self._sums[name]
        others = self._total - self._weights[name]  # the weight of the clients that left the entry alone
        if _is_integer(start):
            return torch.maximum(received, start) if others else received
        if others:  # without the condition, an infinite start would turn a weight of 0 into NaN
            received = received + others * as_real(start).to(received.dtype)
        mean = received / self._total
        if start.dtype == torch.bool:
            return torch.where(mean == 0.5, start, mean > 0.5)
        return (torch.view_as_complex(mean) if start.is_complex() else mean).to(start.dtype)

    def _nothing(self, start: Tensor) -> Tensor:
        """Return the value of a sum before any client is added."""
        if _is_integer(start):
            return torch.full_like(start, torch.iinfo(start.dtype).min)
        return torch.zeros_like(as_real(start), dtype=self.dtype)


def _is_integer(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def as_real(value: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real numbers, and any other one as it is."""
    return torch.view_as_real(value) if value.is_complex() else value
