"""What the emulated GPU records: which line made the host wait for the device, and what it was doing."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

_HERE = os.path.dirname(os.path.realpath(__file__))


class Frame(NamedTuple):
    """One line of a stack."""

    path: str
    function: str
    line: int


class Event(NamedTuple):
    """Something that happened on a line, in a phase of the run."""

    phase: str
    kind: str
    where: str
    via: str


class Mixture(NamedTuple):
    """An operation on tensors of several devices that CUDA accepts, as far as FakeTensorMode knows."""

    operation: str
    tensors: str
    where: str


class Record:
    """Counts events by the innermost line of the code under test.

    Args:
        code: folders of the code under test.
        phase: returns the name of the phase that a stack, innermost frame first, belongs to.
    """

    def __init__(self, code: tuple[str, ...], phase: Callable[[list[Frame]], str]) -> None:
        self._code = tuple(os.path.realpath(folder) for folder in code)
        self._phase = phase
        #: how often the host waited
        self.waits: Counter[Event] = Counter()
        #: bytes that were copied between host and device or between ranks
        self.copies: Counter[Event] = Counter()
        self.mixtures: Counter[Mixture] = Counter()

    def add_wait(self, kind: str, times: int = 1) -> None:
        """Record that the host waited for the device."""
        self.waits[self._event(kind)] += times

    def add_copy(self, kind: str, size: int) -> None:
        """Record a copy of ``size`` bytes."""
        self.copies[self._event(kind)] += size

    def add_mixture(self, operation: str, tensors: str) -> None:
        """Record an operation on tensors of several devices."""
        self.mixtures[Mixture(operation, tensors, self._event("").where)] += 1

    def _event(self, kind: str) -> Event:
        frames = _stack()
        others: list[str] = []
        for path, _, line in frames:
            if path.startswith(self._code):
                return Event(self._phase(frames), kind, f"{_short(path)}:{line}", " < ".join(others))
            if "/torch/" not in path and not path.startswith("<") and len(others) < 3:
                others.append(f"{_short(path)}:{line}")
        return Event(self._phase(frames), kind, others[0] if others else "", " < ".join(others[1:]))


def _stack() -> list[Frame]:
    """Return the stack, innermost frame first, without the emulation's own frames."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        path = _real_path(frame.f_code.co_filename)
        if os.path.dirname(path) != _HERE:
            frames.append(Frame(path, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return frames


_real_path = cache(os.path.realpath)


def _short(path: str) -> str:
    """Return a path from the name of its package on."""
    for folder in ("site-packages/", "/fl_lightning/", "/callbacks/"):
        if folder in path:
            return (folder.strip("/") + "/" if folder != "site-packages/" else "") + path.rpartition(folder)[2]
    return path
