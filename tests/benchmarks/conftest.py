"""The benchmark is a program of its own; tests run it in their process."""

import signal

import pytest


@pytest.fixture(autouse=True)
def _keep_the_handling_of_signals():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
