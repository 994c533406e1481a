"""``fl-lightning compare --dry``: try every cell of a suite for two rounds, and keep nothing."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from fl_lightning.cli.main import main as fl_lightning
from fl_lightning.cli.named_classes import import_named_classes
from fl_lightning.cli.parse import parse_all
from fl_lightning.cli.signals import describe, exit_code
from fl_lightning.core.child_process import follow_parent
from fl_lightning.data.selection import AllClients, Selection
from fl_lightning.experiments.cells import Suite
from fl_lightning.experiments.jobs import Task, run_all
from fl_lightning.experiments.parsing import Parsed
from fl_lightning.experiments.plan import plan

_ROUNDS = _CLIENTS = _BATCHES = 2
#: samples per batch, because a large network needs seconds for 32 of them
_BATCH_SIZE = 4


class FewClients(Selection):
    """A selection of the first few clients that another selection chooses, for a dry run.

    Args:
        selection: the other selection; by default, all clients.
        limit: maximum number of clients that take part.
    """

    def __init__(self, selection: Selection | None = None, limit: int = _CLIENTS) -> None:
        self.selection = selection or AllClients()
        self.limit = limit

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        return self.selection.cohort(num_clients, seed, round)[: self.limit]


def dry_run(suite: Suite, chosen: Collection[str], jobs: int, fit_options: Sequence[str]) -> int:
    """Run two short rounds of every chosen cell with the first seed, and return the exit code: 1 if a cell failed.

    Args:
        suite: the suite.
        chosen: names of the cells.
        jobs: number of parallel runs.
        fit_options: options of ``fl-lightning fit`` for every run.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            tasks = [task for task in _short_tasks(suite, Path(folder), fit_options) if task.cell.name in chosen]
            failed = run_all(tasks, jobs, _fork)
        except KeyboardInterrupt as interrupt:
            print(f"{describe(interrupt)}: a dry run keeps nothing.", file=sys.stderr)
            return exit_code(interrupt)
    skipped = sum(cell.skip is not None for cell in suite.cells if cell.name in chosen)
    note = f"; the suite skips {skipped} more" if skipped else ""
    print(f"dry run: {len(tasks) - len(failed)} of {len(tasks)} cells ran two rounds{note}", flush=True)
    return 1 if failed else 0


def _short_tasks(suite: Suite, folder: Path, fit_options: Sequence[str]) -> list[Task]:
    """Plan the suite in a temporary folder, with one more config per cell that shortens its runs."""
    configs: list[dict[str, Any]] = []

    def parse(command_lines: Sequence[Sequence[str]]) -> list[Parsed]:
        import_named_classes([argument for arguments in command_lines for argument in arguments])
        answers = parse_all(command_lines)
        configs.extend(yaml.safe_load(answer.config) if answer.error is None else {} for answer in answers)
        return answers

    tasks = []
    for task, config in zip(
        plan(replace(suite, seeds=suite.seeds[:1]), folder, fit_options, parse), configs, strict=True
    ):
        short = task.folder.path.parent / "short.yaml"
        short.parent.mkdir(parents=True, exist_ok=True)
        short.write_text(yaml.safe_dump(shortened(config)))
        tasks.append(replace(task, arguments=(*task.arguments, "--config", str(short)), rounds=_ROUNDS))
    return tasks


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that limit rounds, clients and batches. The data, the partition and the model stay."""
    data = config.get("data") or {}
    few = {"class_path": f"{__name__}.FewClients", "init_args": {"selection": data.get("selection")}}
    source = {}
    if "evaluation_batch_size" in (data.get("source") or {}).get("init_args", {}):
        source = {"source": {"init_args": {"evaluation_batch_size": _BATCH_SIZE}}}
    return {
        "data": {"selection": few, **source},
        "client": {"epochs": 1, "batch_size": _BATCH_SIZE, "limit_train_batches": _BATCHES},
        "trainer": {"max_epochs": _ROUNDS, "limit_val_batches": 1, "num_sanity_val_steps": 0},
    }


class _ForkedProcess:
    """A fork with the interface of ``subprocess.Popen``. A new process would need seconds to import Lightning."""

    def __init__(self, arguments: Sequence[str], threads: int, log: IO[bytes]) -> None:
        self._process = multiprocessing.get_context("fork").Process(
            target=_fit, args=(str(os.getpid()), arguments, threads, log)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the process to end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fl-lightning fit", timeout or 0.0)


def _fork(arguments: Sequence[str], threads: int, log: IO[bytes]) -> _ForkedProcess:
    sys.stdout.flush()
    sys.stderr.flush()
    return _ForkedProcess(arguments, threads, log)


def _fit(parent: str, arguments: Sequence[str], threads: int, log: IO[bytes]) -> None:
    os.setsid()
    follow_parent(parent)
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", threads)))
    fl_lightning(["fit", *arguments])
