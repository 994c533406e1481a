"""The processes of a distributed run: what happens when a signal arrives or one of them dies.

This file uses private names of Lightning: the launcher's ``procs``, the thread that watches them, and the Trainer's
signal connector. Each has a test in ``tests/lightning_contract/test_names.py``.
"""

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from fl_lightning._lightning.names import Trainer, rank_zero_only
from fl_lightning._lightning.package import PACKAGE

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.fabric.strategies.launchers import subprocess_script
    from lightning.pytorch.plugins.environments import SLURMEnvironment
else:
    from lightning_fabric.strategies.launchers import subprocess_script
    from pytorch_lightning.plugins.environments import SLURMEnvironment

#: the process that started this one; it is rank zero if this is another rank
_PARENT = os.getppid()
#: seconds that other ranks have to end on their own
_GRACE_PERIOD = 2.0
#: seconds that rank zero has to find the mistake that another rank has found
_SECONDS_TO_REPORT = 10.0


class DeadRankError(Exception):
    """Raised instead of the error that a rank's death causes in the others."""


def is_rank_zero() -> bool:
    """Return whether this is rank zero, as far as the environment tells before a Trainer exists."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def keep_signal_handlers(trainer: Trainer) -> None:
    """Keep the Trainer from replacing the handler of SIGTERM, except on a cluster where it requeues jobs.

    Its own handler waits for the end of the batch, which is the round, and communicates, which can hang.
    """
    environment = trainer._accelerator_connector.cluster_environment
    if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def explain_dead_ranks(advice: str) -> None:
    """Print one line when another rank dies, and stop all others. Lightning would kill this process without a word.

    Args:
        advice: how to go on.
    """
    subprocess_script._logger.setLevel("WARNING")

    def explain(observer: Any) -> None:
        processes = observer._child_processes
        print(f"error: {_dead_rank(processes)}. {advice}", file=sys.stderr, flush=True)
        _stop(processes, 0)
        os._exit(1)  # the main thread may wait for the dead rank

    subprocess_script._ChildProcessObserver._terminate_all = explain  # type: ignore[method-assign, assignment]


def let_rank_zero_report(trainer: Trainer) -> None:
    """On the other ranks, wait: rank zero most likely finds the same mistake, reports it and stops them."""
    if trainer.local_rank > 0:
        time.sleep(_SECONDS_TO_REPORT)


def end_other_ranks(trainer: Trainer, error: BaseException) -> BaseException:
    """Stop the ranks that this process started, and return the error to raise: if a rank has died, one that names it.

    Args:
        trainer: the Trainer.
        error: what ended this rank.
    """
    processes: list[subprocess.Popen] = getattr(trainer.strategy.launcher, "procs", [])
    if isinstance(error, RuntimeError) and trainer.world_size > 1:
        deadline = time.monotonic() + _GRACE_PERIOD
        while time.monotonic() < deadline:  # the connection breaks a little before the process has ended
            dead = _dead_rank(processes)
            if dead is None and trainer.local_rank > 0 and os.getppid() != _PARENT:
                dead = f"rank 0 (process {_PARENT}) died"
            if dead is not None:
                error = DeadRankError(dead)
                break
            time.sleep(0.05)
    _stop(processes, _GRACE_PERIOD)
    return error


def _dead_rank(processes: list[subprocess.Popen]) -> str | None:
    """Describe the first process that ended with an error, or return None."""
    for rank, process in enumerate(processes, start=1):
        code = process.poll()
        if code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return f"rank {rank} (process {process.pid}) {how}"
    return None


def _stop(processes: list[subprocess.Popen], seconds: float) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
