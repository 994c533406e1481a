"""Starts the contestants, each in a process of its own, and lets them run their rounds in turns."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from contestants import CONTESTANTS, HERE, Contestant

#: seconds after which a contestant that does not answer is ended
PATIENCE = 900


@dataclass
class Row:
    """The measurements of one contestant in one task.

    Args:
        key: key of the contestant.
        label: its name in the table.
        skipped: why there are no measurements, or None.
        versions: versions of its packages.
        startup: seconds from the start of the process to its first round.
        first: seconds of the very first round.
        seconds: seconds per round in each turn; the first turn is a warm-up.
        accuracy: accuracy after each turn.
        peak_mb: sum of the peak resident memory of all its processes.
        difference: largest difference between its final weights and the plain loop's.
    """

    key: str
    label: str
    skipped: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    startup: float | None = None
    first: float | None = None
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float | None] = field(default_factory=list)
    peak_mb: float | None = None
    difference: float | None = None


class Process:
    """A running contestant, which waits for its turn."""

    def __init__(self, key: str, contest: Path, folder: Path, threads: int) -> None:
        contestant = CONTESTANTS[key]
        self.row = Row(key, contestant.label)
        self.weights = folder / f"{key}.pt"
        self._log = folder / f"{key}.log"
        self._process: subprocess.Popen | None = None
        if not contestant.python.exists():
            self.row.skipped = f"not installed: run benchmarks/peers.sh {contestant.peer}"
            return
        begin = time.perf_counter()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [contestant.python, HERE / contestant.script, contest, self.weights, *contestant.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                cwd=folder,
                env=_environment(contestant, threads),
                start_new_session=True,
            )
        report = self._read()
        self.row.startup = time.perf_counter() - begin
        self.row.versions = report.get("versions", {})

    @property
    def running(self) -> bool:
        """Whether the contestant has neither failed nor been skipped."""
        return self.row.skipped is None

    def run_turn(self, rounds: int) -> None:
        """Let the contestant run some rounds while all others wait, and measure them, the first of several excepted."""
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            report = self._ask()
            seconds.append(time.perf_counter() - begin)
            if not self.running:
                return
        self.row.first = self.row.first or seconds[0]
        self.row.seconds.append(statistics.mean(seconds[1:] or seconds))
        self.row.accuracy.append(report["accuracy"])

    def finish(self) -> None:
        """Read the peak memory and let the contestant end."""
        assert self._process is not None
        self.row.peak_mb = _peak_mb(self._process.pid)
        self._ask()
        if self.running:
            self._process.wait(timeout=60)

    def end(self) -> None:
        """End the contestant's processes if they are still running."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ask(self) -> dict[str, Any]:
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which reading will notice
            self._process.stdin.write("\n")
        return self._read()

    def _read(self) -> dict[str, Any]:
        """Return the contestant's next report; if there is none, note why."""
        assert self._process is not None
        alarm = threading.Timer(PATIENCE, self.end)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        report = json.loads(line) if line else {"skipped": f"failed: {_last_line(self._log)}"}
        self.row.skipped = report.get("skipped")
        return report


def run(
    keys: Sequence[str],
    contest: Path,
    folder: Path,
    turns: int,
    rounds: int,
    threads: int,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Run a contest and return one row per contestant. All of them have turn 0, then all have turn 1, and so on.

    Args:
        keys: keys of the contestants, the plain loop among them.
        contest: file of the contest.
        folder: folder for logs and weights.
        turns: number of turns, the warm-up included.
        rounds: number of rounds per turn.
        threads: threads per contestant.
        say: prints the progress.
    """
    processes: list[Process] = []
    try:
        for key in keys:
            processes.append(Process(key, contest, folder, threads))
            row = processes[-1].row
            say(f"  {row.label}: " + (row.skipped or f"ready after {row.startup:.1f} s"))
        for number in range(turns):
            turn = [process for process in processes if process.running]
            first = number % len(turn)  # so that nobody always follows the same contestant
            for process in turn[first:] + turn[:first]:
                process.run_turn(rounds)
            times = (f"{p.row.key} {p.row.seconds[-1]:.2f}" for p in turn if p.running)
            say(f"  turn {number}{' (warm-up)' if number == 0 else ''}, seconds per round: {', '.join(times)}")
        for process in processes:
            if process.running:
                process.finish()
    finally:
        for process in processes:
            process.end()
    _compare_weights(processes)
    return [process.row for process in processes]


def _compare_weights(processes: list[Process]) -> None:
    plain = next(process for process in processes if process.row.key == "plain")
    if not plain.running:
        raise SystemExit(f"the plain loop has {plain.row.skipped}")
    expected = torch.load(plain.weights)
    for process in processes:
        if process.running:
            weights = torch.load(process.weights)
            process.row.difference = max((a - b).abs().max().item() for a, b in zip(weights, expected, strict=True))


def _environment(contestant: Contestant, threads: int) -> dict[str, str]:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(max(1, threads // contestant.processes)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    if contestant.peer is not None:
        environment |= {"PYTHONPATH": str(HERE), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return environment


def _peak_mb(root: int) -> float | None:
    """Return the sum of the peak resident memory of a process and its descendants; Linux only."""
    try:
        parents = {pid: _status(pid, "PPid") for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    except OSError:
        return None
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(_status(pid, "VmHWM") for pid in family) / 1024


def _status(pid: int, entry: str) -> int:
    """Return an entry of a process's status; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{entry}:")), 0)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
