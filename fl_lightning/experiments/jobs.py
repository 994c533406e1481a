"""Starting, resuming, skipping and stopping the runs of a suite, each in its own process."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from fl_lightning.core.child_process import environment_of_child
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.cells import Cell
from fl_lightning.experiments.runs import ROUND_TAG, read_record
from fl_lightning.experiments.table import format_duration

#: the command of a run, without its arguments
FIT = (sys.executable, "-m", "fl_lightning.cli", "fit")
#: seconds that a run has to end on its own after SIGTERM
_GRACE_PERIOD = 10.0
#: seconds between two lines of progress if there is no terminal for a bar
_PROGRESS_INTERVAL = 30.0


@dataclass(frozen=True)
class Task:
    """One run of a suite: a cell with a seed.

    Args:
        cell: the configuration to run.
        seed: the seed of the run.
        folder: the folder of the run.
        arguments: the arguments of ``fl-lightning fit``, without the checkpoint to resume from.
        rounds: the number of rounds of the run.
        origin: digest of what the configuration is made of; None if it has to be checked again every time.
        needs: the folders of runs that have to finish first, because this one uses their checkpoints.
    """

    cell: Cell
    seed: int
    folder: RunFolder
    arguments: tuple[str, ...]
    rounds: int
    origin: str | None = None
    needs: tuple[RunFolder, ...] = ()

    @property
    def name(self) -> str:
        """The cell and the seed, as printed."""
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the run has been completed, possibly by an earlier comparison."""
        return bool(read_record(self.folder).get("finished"))

    @property
    def missing(self) -> dict[RunFolder, str]:
        """The runs that this one needs and that have not finished, with their names."""
        return {
            folder: f"{name}, seed {self.seed}"
            for folder, name in zip(self.needs, self.cell.needs, strict=True)
            if not read_record(folder).get("finished")
        }

    def write_record(self, finished: bool) -> None:
        """Record in the folder which run it holds."""
        record = {
            "row": self.cell.row,
            "column": self.cell.column,
            "seed": self.seed,
            "rounds": self.rounds,
            "origin": self.origin,
            "finished": finished,
        }
        part = self.folder.record.with_suffix(".part")
        part.write_text(json.dumps(record) + "\n")
        os.replace(part, self.folder.record)

    def clear(self) -> None:
        """Remove the files of an earlier process that was stopped in the first round and cannot be resumed."""
        for file in (self.folder.config, *self.folder.events):
            file.unlink(missing_ok=True)


class Process(Protocol):
    """The part of ``subprocess.Popen`` that running a task needs."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the process to end; raise ``subprocess.TimeoutExpired`` if it does not end in time."""


#: starts ``fl-lightning fit`` in a session of its own, given its arguments, a number of threads and a file for output
Launch = Callable[[Sequence[str], int, IO[bytes]], Process]


def launch_fit(arguments: Sequence[str], threads: int, log: IO[bytes]) -> Process:
    """Start a run as a new process."""
    return subprocess.Popen(
        [*FIT, *arguments],
        env={"OMP_NUM_THREADS": str(threads), **environment_of_child()},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches only the comparison, which then stops its runs
    )


class _Process:
    """A running task. It resumes from the last checkpoint if there is one."""

    def __init__(self, task: Task, threads: int, launch: Launch) -> None:
        self.task = task
        resume = task.folder.checkpoint.is_file()
        task.folder.path.mkdir(parents=True, exist_ok=True)
        log = _open_locked(task.folder.log)
        if not resume:
            task.clear()
        task.write_record(finished=False)
        self.started = time.monotonic()
        self._events = EventAccumulator(str(task.folder))
        arguments = [*task.arguments, *(("--ckpt_path", str(task.folder.checkpoint)) if resume else ())]
        self._process = launch(arguments, threads, log)
        log.close()  # the process has its own handle, and with it the lock

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.poll()

    def rounds(self) -> int:
        """Return the number of rounds that the run has completed."""
        if not self.task.folder.events:
            return 0
        self._events.Reload()
        return self._events.Scalars(ROUND_TAG)[-1].step + 1 if ROUND_TAG in self._events.Tags()["scalars"] else 0

    def terminate(self) -> None:
        """Ask the process to end. SIGINT would not do, because runs of a comparison in the background ignore it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the process to end."""
        self._process.wait(seconds)


def _open_locked(file: Path) -> IO[bytes]:
    """Open the log of a run, locked for as long as its process lives, so that no other process uses the folder."""
    log = file.open("ab")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MisconfigurationError(
            f"{file.parent} is in use by another process: wait until it has ended, or stop it"
        ) from None
    return log


def run_all(tasks: Sequence[Task], jobs: int, launch: Launch = launch_fit) -> list[Task]:
    """Run all unfinished tasks, each after the tasks that it needs. An interrupt stops every process cleanly.

    Args:
        tasks: the runs of a suite.
        jobs: number of parallel runs, which share the cores.
        launch: starts the process of a run.

    Returns:
        The runs that failed, and the runs that were not started because a run that they need failed.
    """
    waiting = [task for task in tasks if not task.finished]
    skipped = len(tasks) - len(waiting)
    if skipped:
        print(f"{skipped} of {len(tasks)} runs have already finished", flush=True)
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    running: list[_Process] = []
    failed: list[Task] = []
    with _Progress(list(waiting), skipped) as progress:
        try:
            while waiting or running:
                unfinished = {task.folder for task in (*waiting, *(process.task for process in running))}
                for task in [task for task in waiting if not task.missing.keys() <= unfinished]:
                    waiting.remove(task)
                    failed.append(task)
                    progress.give_up(task)
                for task in [task for task in waiting if not task.missing][: jobs - len(running)]:
                    waiting.remove(task)
                    process = _Process(task, threads, launch)
                    running.append(process)
                    progress.start(process.task, process.rounds())
                time.sleep(0.2)
                for process in list(running):
                    code = process.poll()
                    progress.update(process.task, process.rounds())
                    if code is None:
                        continue
                    running.remove(process)
                    if code == 0:
                        process.task.write_record(finished=True)
                    else:
                        failed.append(process.task)
                    progress.end(process.task, time.monotonic() - process.started, code)
                progress.show()
        finally:
            _stop(running)
    return failed


def _stop(running: Sequence[_Process]) -> None:
    """Terminate all processes, and kill those that do not end in time. Their last complete round is always saved."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _GRACE_PERIOD
    try:
        for process in running:
            process.wait(max(deadline - time.monotonic(), 0.1))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in running:
            process.kill()
            process.wait()


class _Progress:
    """A bar over the rounds of all runs, or an occasional line if there is no terminal."""

    def __init__(self, tasks: Sequence[Task], skipped: int) -> None:
        self._rounds = dict.fromkeys((task.folder for task in tasks), 0)
        self._total_rounds = sum(task.rounds for task in tasks)
        self._resumed_rounds = 0
        self._ended_runs, self._total_runs = skipped, skipped + len(tasks)
        self._started = time.monotonic()
        self._next_line = self._started + _PROGRESS_INTERVAL
        bar_format = "{desc} |{bar:20}| {n_fmt}/{total_fmt} rounds{postfix}"
        self._bar = tqdm(total=self._total_rounds, disable=None, dynamic_ncols=True, bar_format=bar_format)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def start(self, task: Task, rounds: int) -> None:
        """Record that a run starts, or that it resumes after some rounds."""
        self._resumed_rounds += rounds
        self.update(task, rounds)

    def update(self, task: Task, rounds: int) -> None:
        """Record how many rounds a run has completed."""
        self._rounds[task.folder] = max(rounds, self._rounds[task.folder])

    def end(self, task: Task, seconds: float, code: int) -> None:
        """Print how a run ended. Rounds that it skipped by stopping early or failing no longer count as remaining."""
        self._ended_runs += 1
        rounds = self._rounds[task.folder]
        self._total_rounds -= task.rounds - rounds
        outcome = f"{rounds} rounds, {seconds:.0f} s" if code == 0 else f"FAILED (exit code {code})"
        lines = [f"[{self._ended_runs}/{self._total_runs}] {task.name}: {outcome}"]
        if code != 0:
            lines += [f"    {line}" for line in (*_last_lines(task.folder.log), f"full log: {task.folder.log}")]
        tqdm.write("\n".join(lines))
        sys.stdout.flush()

    def give_up(self, task: Task) -> None:
        """Print that a run cannot start."""
        self._ended_runs += 1
        self._total_rounds -= task.rounds
        needed = " and ".join(task.missing.values())
        tqdm.write(f"[{self._ended_runs}/{self._total_runs}] {task.name}: NOT RUN, because it needs {needed}")
        sys.stdout.flush()

    def show(self) -> None:
        """Draw the bar, or print its content as a line at regular intervals."""
        rounds = sum(self._rounds.values())
        passed = time.monotonic() - self._started
        new_rounds = rounds - self._resumed_rounds
        left = format_duration(passed * (self._total_rounds - rounds) / new_rounds) + " left" if new_rounds > 0 else ""
        runs = f"{self._ended_runs} of {self._total_runs} runs"
        if not self._bar.disable:
            self._bar.n, self._bar.total = rounds, self._total_rounds
            self._bar.set_description_str(runs, refresh=False)
            self._bar.set_postfix_str(left, refresh=False)
            self._bar.refresh()
        elif time.monotonic() >= self._next_line:
            self._next_line += _PROGRESS_INTERVAL
            times = ", ".join(filter(None, (f"{format_duration(passed)} elapsed", left)))
            print(f"{runs}, {rounds} of {self._total_rounds} rounds, {times}", flush=True)


def _last_lines(log: Path, lines: int = 12) -> list[str]:
    """Return the last lines of a log, without what a progress bar has overwritten."""
    text = log.read_bytes()[-20_000:].decode(errors="replace")
    text = re.sub(r"[^\n]*\r", "", text)
    return [line for line in text.splitlines() if line.strip()][-lines:]
