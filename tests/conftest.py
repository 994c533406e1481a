import os

import numpy as np
import pytest
import torch
from pytorch_lightning import seed_everything

from tests.toys import blobs


@pytest.fixture(autouse=True)
def _reproducible(monkeypatch: pytest.MonkeyPatch):
    """One thread, so that sums do not depend on the machine; a seed; no seed left in the environment."""
    torch.set_num_threads(1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    seed_everything(0, verbose=False)
    yield
    os.environ.pop("PL_SEED_WORKERS", None)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def data():
    return blobs()
