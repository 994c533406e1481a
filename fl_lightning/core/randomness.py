"""The source of every random number in a run: a pure function of the run's seed and of what the number is for.

No random state is carried from round to round, so a resumed run has the same results as an uninterrupted one.
"""

import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_for(purpose: str, *key: int) -> int:
    """Return a 63-bit seed for ``purpose``, statistically independent of the seeds for all other purposes and keys."""
    words = np.random.SeedSequence([zlib.crc32(purpose.encode()), *key]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def generator_for(purpose: str, *key: int) -> np.random.Generator:
    """Return a NumPy generator seeded with :func:`seed_for`."""
    return np.random.default_rng(seed_for(purpose, *key))


def seed_global_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, on all devices.

    ``torch.manual_seed`` is avoided: if CUDA is installed but unused, it stores every call with its traceback.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the state of Python's, NumPy's and torch's global generators on exit.

    Lightning's ``isolate_rng`` does the same, but searches for GPUs every time.
    """
    state = _global_state()
    try:
        yield
    finally:
        _restore(state)


class Generators:
    """A context with its own state of the global generators, which continues each time the context is entered.

    With it, clients that train in turns draw the same numbers as clients that train one after another.

    Args:
        seed: seed of the generators when they are first entered.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: tuple[Any, ...] | None = None
        self._outer: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outer = _global_state()
        if self._own is None:
            seed_global_generators(self._seed)
        else:
            _restore(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _global_state()
        _restore(self._outer)


def _global_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state(), cuda


def _restore(state: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


def generator_states() -> tuple[object, ...]:
    """Return the state of Python's, NumPy's and torch's global generators, to see whether something draws from them."""
    _, key, position, *_ = np.random.get_state()
    states = [torch.default_generator.get_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return random.getstate(), np.asarray(key).tobytes(), position, *(state.numpy().tobytes() for state in states)


def run_seed() -> int:
    """Return the seed that ``seed_everything`` was called with, or 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))
