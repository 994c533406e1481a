"""The runs of a suite, each in a process of its own: started, resumed, skipped, stopped."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytorch_lightning.utilities.exceptions import MisconfigurationException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from fl_lightning.reporting.runs import CONFIG, EVENTS, RECORD, ROUNDS
from fl_lightning.reporting.suite import Cell
from fl_lightning.reporting.table import duration

FIT = (sys.executable, "-m", "fl_lightning.cli", "fit")
LOG = "fit.log"
#: seconds that an interrupted run has to end by itself
_GRACE = 10.0
#: seconds between two lines of progress where there is no terminal
_EVERY = 30.0


@dataclass(frozen=True)
class Task:
    """One run of a suite: a cell with a seed, in its folder."""

    cell: Cell
    seed: int
    folder: Path
    #: of ``fl-lightning fit``, without the checkpoint to resume from
    arguments: tuple[str, ...]
    rounds: int

    @property
    def name(self) -> str:
        """As it is said to a reader."""
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def checkpoint(self) -> Path:
        """Of the last whole round."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def finished(self) -> bool:
        """Whether an earlier comparison ran it to its end."""
        file = self.folder / RECORD
        return file.is_file() and bool(json.loads(file.read_text())["finished"])

    def write_record(self, finished: bool) -> None:
        """What the folder says of its run."""
        record = {"row": self.cell.row, "column": self.cell.column, "seed": self.seed, "finished": finished}
        part = self.folder / f"{RECORD}.part"
        part.write_text(json.dumps(record) + "\n")
        os.replace(part, self.folder / RECORD)

    def forget(self) -> None:
        """Removes what a run left that was cut off in its first round: there is nothing to go on from."""
        for file in (self.folder / CONFIG, *self.folder.glob(EVENTS)):
            file.unlink(missing_ok=True)


class _Process:
    """A task that runs."""

    def __init__(self, task: Task, threads: int) -> None:
        self.task = task
        resume = task.checkpoint.is_file()
        task.folder.mkdir(parents=True, exist_ok=True)
        self._log = _locked(task.folder / LOG)
        if not resume:
            task.forget()
        task.write_record(finished=False)
        self.began = time.monotonic()
        self._events = EventAccumulator(str(task.folder))
        self._process = subprocess.Popen(
            [*FIT, *task.arguments, *(("--ckpt_path", str(task.checkpoint)) if resume else ())],
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the comparison, which then stops its runs
        )
        self._log.close()  # the process has its own

    def poll(self) -> int | None:
        return self._process.poll()

    def rounds(self) -> int:
        """How many ended so far."""
        if not any(self.task.folder.glob(EVENTS)):
            return 0
        self._events.Reload()
        return self._events.Scalars(ROUNDS)[-1].step + 1 if ROUNDS in self._events.Tags()["scalars"] else 0

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, seconds: float | None = None) -> None:
        self._process.wait(seconds)


def _locked(file: Path) -> IO[bytes]:
    """The log of a run, locked for as long as its process lives: nobody runs the same folder beside it."""
    log = file.open("ab")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MisconfigurationException(
            f"{file.parent} is being run by another process: wait until that has ended, or stop it"
        ) from None
    return log


def run_all(tasks: Sequence[Task], jobs: int) -> list[Task]:
    """Runs what is not finished, ``jobs`` at once; gives the tasks that failed. An interrupt stops all cleanly."""
    waiting = deque(task for task in tasks if not task.finished)
    skipped = len(tasks) - len(waiting)
    if skipped:
        print(f"{skipped} of {len(tasks)} runs are done already", flush=True)
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    running: list[_Process] = []
    failed: list[Task] = []
    with _Progress(list(waiting), skipped) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    process = _Process(waiting.popleft(), threads)
                    running.append(process)
                    progress.started(process.task, process.rounds())
                time.sleep(0.2)
                for process in list(running):
                    code = process.poll()
                    progress.at(process.task, process.rounds())
                    if code is None:
                        continue
                    running.remove(process)
                    if code == 0:
                        process.task.write_record(finished=True)
                    else:
                        failed.append(process.task)
                    progress.ended(process.task, time.monotonic() - process.began, code)
                progress.show()
        finally:
            _stop(running)
    return failed


def _stop(running: Sequence[_Process]) -> None:
    """Interrupts; the last whole round of each is kept whatever happens, so those that do not heed it are killed."""
    for process in running:
        process.signal(signal.SIGINT)
    deadline = time.monotonic() + _GRACE
    try:
        for process in running:
            process.wait(max(deadline - time.monotonic(), 0.1))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in running:
            process.signal(signal.SIGKILL)
            process.wait()


class _Progress:
    """A bar over the rounds of all runs; a line now and then where there is no terminal."""

    def __init__(self, tasks: Sequence[Task], skipped: int) -> None:
        self._rounds = dict.fromkeys((task.folder for task in tasks), 0)
        self._total = sum(task.rounds for task in tasks)
        self._resumed = 0
        self._done, self._runs = skipped, skipped + len(tasks)
        self._began = time.monotonic()
        self._next_line = self._began + _EVERY
        form = "{desc} |{bar:20}| {n_fmt}/{total_fmt} rounds{postfix}"
        self._bar = tqdm(total=self._total, disable=None, dynamic_ncols=True, bar_format=form)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def started(self, task: Task, rounds: int) -> None:
        """A run starts, or goes on after so many rounds."""
        self._resumed += rounds
        self.at(task, rounds)

    def at(self, task: Task, rounds: int) -> None:
        """A run has had so many rounds."""
        self._rounds[task.folder] = max(rounds, self._rounds[task.folder])

    def ended(self, task: Task, seconds: float, code: int) -> None:
        """A run is over: nobody waits for the rounds that it did without, by stopping early or failing."""
        self._done += 1
        rounds = self._rounds[task.folder]
        self._total -= task.rounds - rounds
        what = f"{rounds} rounds, {seconds:.0f} s" if code == 0 else f"FAILED (exit code {code})"
        lines = [f"[{self._done}/{self._runs}] {task.name}: {what}"]
        if code != 0:
            lines += [f"    {line}" for line in (*_end_of(task.folder / LOG), f"all of it: {task.folder / LOG}")]
        tqdm.write("\n".join(lines))
        sys.stdout.flush()

    def show(self) -> None:
        """Draws the bar, or says the same in a line from time to time."""
        rounds = sum(self._rounds.values())
        passed = time.monotonic() - self._began
        here = rounds - self._resumed
        left = f", {duration(passed * (self._total - rounds) / here)} left" if here > 0 else ""
        runs = f"{self._done} of {self._runs} runs"
        if not self._bar.disable:
            self._bar.n, self._bar.total = rounds, self._total
            self._bar.set_description_str(runs, refresh=False)
            self._bar.set_postfix_str(left.removeprefix(", "), refresh=False)
            self._bar.refresh()
        elif time.monotonic() >= self._next_line:
            self._next_line += _EVERY
            print(f"{runs}, {rounds} of {self._total} rounds, {duration(passed)} passed{left}", flush=True)


def _end_of(log: Path, lines: int = 12) -> list[str]:
    """The last lines, without what a progress bar drew over."""
    text = log.read_bytes()[-20_000:].decode(errors="replace")
    text = re.sub(r"[^\n]*\r", "", text)
    return [line for line in text.splitlines() if line.strip()][-lines:]
