"""What ``fl_lightning._lightning.ranks`` and ``checkpoint`` use of Lightning, and what they make of it."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pytorch_lightning.strategies import DDPStrategy

from fl_lightning._lightning import ranks
from fl_lightning._lightning.names import TorchCheckpointIO
from fl_lightning._lightning.ranks import (
    DeadRankError,
    end_other_ranks,
    explain_dead_ranks,
    keep_signal_handlers,
    let_rank_zero_report,
)
from tests.toys import Blobs, Net, quiet_trainer


def test_the_trainer_registers_its_handlers_in_the_method_that_is_replaced():
    seen = []
    for keep in (False, True):
        trainer = quiet_trainer(fast_dev_run=True)

        class Watch(Net):
            def training_step(self, batch, batch_idx):
                seen.append(signal.getsignal(signal.SIGTERM))
                return super().training_step(batch, batch_idx)

        if keep:
            keep_signal_handlers(trainer)
        trainer.fit(Watch(), datamodule=Blobs())
    own, kept = seen
    assert own is not kept, "ranks.keep_signal_handlers replaces _signal_connector.register_signal_handlers"
    assert kept is signal.getsignal(signal.SIGTERM)


def test_the_default_way_to_write_checkpoints_is_this_class():
    assert type(quiet_trainer().strategy.checkpoint_io) is TorchCheckpointIO, (
        "checkpoint.verify_checkpoints replaces it"
    )


def test_a_launcher_keeps_the_processes_that_it_started():
    trainer = quiet_trainer(strategy="ddp", devices=2)
    assert isinstance(trainer.strategy, DDPStrategy)
    trainer.strategy._configure_launcher()
    assert trainer.strategy.launcher.procs == [], "ranks.end_other_ranks reads launcher.procs"


def ended(code):
    process = subprocess.Popen([sys.executable, "-S", "-c", code])
    process.wait()
    return process


@pytest.fixture
def observer(monkeypatch):
    """Return the thread that watches other ranks, with processes that have ended."""
    kind = ranks.subprocess_script._ChildProcessObserver
    monkeypatch.setattr(kind, "_terminate_all", kind._terminate_all)

    def make(*processes):
        return kind(main_pid=0, child_processes=list(processes))

    return make


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("raise SystemExit(3)", "ended with exit code 3"),
    ],
)
def test_a_dead_rank_is_named_with_the_advice(observer, monkeypatch, capsys, code, how):
    codes = []
    monkeypatch.setattr(ranks.os, "_exit", codes.append)
    explain_dead_ranks("Go on like this.")
    dead = ended(code)
    observer(ended(""), dead)._run()
    assert codes == [1], "ranks.explain_dead_ranks replaces _ChildProcessObserver._terminate_all"
    assert capsys.readouterr().err == f"error: rank 2 (process {dead.pid}) {how}. Go on like this.\n"


def trainer_with(*processes):
    strategy = SimpleNamespace(launcher=SimpleNamespace(procs=list(processes)))
    return SimpleNamespace(strategy=strategy, world_size=1 + len(processes), local_rank=0)


def test_the_error_that_a_dead_rank_causes_is_replaced():
    dead = ended("import os; os.kill(os.getpid(), 9)")
    reason = end_other_ranks(trainer_with(dead), RuntimeError("Connection closed by peer"))
    assert isinstance(reason, DeadRankError)
    assert str(reason) == f"rank 1 (process {dead.pid}) was killed by SIGKILL"


def test_other_ranks_are_stopped_and_another_error_stays(monkeypatch):
    monkeypatch.setattr(ranks, "_GRACE_PERIOD", 0.1)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", code]) for code in ("import time; time.sleep(60)", stubborn)
    ]
    error = ZeroDivisionError()
    assert end_other_ranks(trainer_with(*processes), error) is error
    assert all(process.wait(10) < 0 for process in processes)


@pytest.mark.parametrize(("rank", "waits"), [(0, []), (1, [10.0])])
def test_the_other_ranks_let_rank_zero_report_a_mistake(monkeypatch, rank, waits):
    slept = []
    monkeypatch.setattr(ranks.time, "sleep", slept.append)
    let_rank_zero_report(SimpleNamespace(local_rank=rank))
    assert slept == waits
