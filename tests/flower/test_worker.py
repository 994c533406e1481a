"""The files of a node's worker, and what it writes to its log."""

import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time

import pytest

from fl_lightning._lightning import quiet
from fl_lightning._lightning.names import Trainer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower import worker
from fl_lightning.flower.node_folder import WorkerFolder, is_alive
from fl_lightning.flower.packet import Packet


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


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MisconfigurationError("root=x: there is no such folder\nmore"), "root=x"), (ValueError("x"), "ValueError: x")],
)
def test_the_reason_why_a_worker_did_not_start_is_one_line(error, reason, tmp_path, monkeypatch):
    def fail(*_) -> None:
        raise error

    folder = WorkerFolder(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"folder": str(tmp_path), "supernode": os.getpid()})))
    monkeypatch.setattr(worker, "_work", fail)
    with pytest.raises(type(error)):
        worker.main()
    assert folder.failed.read_text().startswith(reason)
    assert "\n" not in folder.failed.read_text()


@pytest.mark.parametrize(("further", "clients"), [({}, [2]), ({"num-partitions": 3}, [])])
def test_a_node_whose_worker_does_not_start_says_which_client_it_has(further, clients, tmp_path, monkeypatch):
    apps = pytest.importorskip("fl_lightning.flower.apps", reason="Flower is not installed")

    def fail(*_) -> None:
        raise apps.WorkerFailedError("its worker did not start: no disk")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(apps, "_worker", fail)
    config = tmp_path / "run.yaml"
    config.touch()
    answer = apps.ask_worker(Packet({}), config, {"partition-id": 2, **further})
    assert answer.note["error"] == "its worker did not start: no disk"
    assert answer.note["clients"] == clients


ORPHAN = """
import os, sys, threading
from fl_lightning.flower import apps
apps._GRACE = 0.1
if os.fork() == 0:
    apps.end_with_parent()
    print(os.getpid(), flush=True)
    threading.Lock().acquire() and threading.Event().wait()
else:
    sys.stdin.readline()
"""


def test_a_server_that_waits_for_ever_ends_with_flower():
    pytest.importorskip("flwr", reason="Flower is not installed")
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = int(parent.stdout.readline())
    time.sleep(1.5)
    assert is_alive(server)
    parent.communicate("\n")
    end = time.monotonic() + 20
    while is_alive(server) and time.monotonic() < end:
        time.sleep(0.1)
    assert not is_alive(server)
