"""Fixtures. The folder's tests run without those of tests/conftest.py, which imports ``pytorch_lightning``."""

import lightning as L  # noqa: N812
import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    L.seed_everything(0, verbose=False)
