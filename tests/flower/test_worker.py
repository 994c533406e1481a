"""The files of a node's worker, and what it writes to its log."""

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from fl_lightning._lightning import quiet
from fl_lightning._lightning.names import Trainer
from fl_lightning.flower import worker
from fl_lightning.flower.node_folder import WorkerFolder


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("alive", [False, True])
def test_a_worker_removes_its_folder_when_its_supernode_has_ended(fails, alive, tmp_path, monkeypatch):
    folder = WorkerFolder(tmp_path / "worker")
    folder.path.mkdir()
    task = {"folder": str(folder.path), "supernode": os.getpid() if alive else ended_process()}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(task)))
    monkeypatch.setattr(worker, "_work", lambda *_: 1 / 0 if fails else None)
    if fails:
        with pytest.raises(ZeroDivisionError):
            worker.main()
    else:
        worker.main()
    assert folder.path.exists() == alive
    assert folder.failed.exists() == (alive and fails)


def test_lightnings_advertisements_are_not_logged(caplog):
    logger = quiet._logger()
    before = list(logger.filters)
    quiet.silence_irrelevant_messages()
    try:
        with caplog.at_level(logging.INFO):
            Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    finally:
        logger.filters[:] = before
    assert "litlogger" not in caplog.text
