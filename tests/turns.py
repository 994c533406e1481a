"""Lets one test at a time use much memory, so that all tests together stay within 2.5 GB."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that is the same in all test processes of the session."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def turn(factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait until no other test process has its turn. A process that imports Lightning needs half a gigabyte."""
    with open(shared_folder(factory) / "turn.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
