"""A whole federation on one machine: a SuperLink, SuperNodes with parts of the simulated partition, and the run."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO, TextIO

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower.node_folder import is_alive

#: how long a process may take to end after it was asked to, in seconds
_GRACE = 10.0
_CONNECTION = "local"
#: Flower's commands that a local federation runs; without one of them, it would wait for ever
_COMMANDS = ("flower-superlink", "flower-superexec", "flwr", "flwr-serverapp", "flwr-clientapp")

#: codes that colour text in a terminal
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EMPTY_LOG_LINE = re.compile(r"\s*|[A-Z]+ *: *\s*")


def run_locally(app: Path, nodes: int) -> int:
    """Run an app and return its exit code: 0, 1 if the run failed, 130 after Ctrl-C, 143 after SIGTERM.

    Nothing is left running, however it ends. Runs are kept in the current folder, as in a simulation.

    Args:
        app: folder of the app.
        nodes: number of SuperNodes; each has every n-th client of the simulated partition.
    """
    with tempfile.TemporaryDirectory(prefix="fl_lightning_") as home, _Processes(Path(home)) as processes:
        try:
            return _run(app, nodes, Path(home), processes)
        except KeyboardInterrupt:
            return 130
        except _TerminatedError:
            return 143


def _run(app: Path, nodes: int, home: Path, processes: "_Processes") -> int:
    port, *node_ports = _free_ports(nodes + 1)
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\naddress = "{address}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
    processes.start("superlink", link)
    _wait_for(port, processes)
    for number, node_port in enumerate(node_ports):
        node = [
            *(sys.executable, "-m", "fl_lightning.flower.supernode"),
            *("--insecure", "--superlink", address, "--port", str(node_port)),
            *("--node-config", f'partition-id={number} num-partitions={nodes} folder="{home}/node_{number}"'),
        ]
        processes.start(f"node_{number}", node)
    run = processes.start("run", ["flwr", "run", str(app), _CONNECTION, "--stream"], shown=True)
    assert run.stdout is not None
    printer = threading.Thread(target=show_lines, args=(run.stdout, sys.stdout), daemon=True)
    printer.start()
    while run.poll() is None:
        processes.check("superlink")
        time.sleep(0.2)
    printer.join(_GRACE)
    listed = processes.output(["flwr", "list", _CONNECTION, "--format", "json"])
    return 0 if run.returncode == 0 and _succeeded(listed) else 1


def _succeeded(listed: str) -> bool:
    """Return whether the only run in Flower's list completed."""
    try:
        runs = json.loads(listed[listed.index("{") :])["runs"]
    except (ValueError, KeyError):
        return False
    return bool(runs) and all(run.get("status") == "finished:completed" for run in runs)


def show_lines(source: BinaryIO, target: TextIO) -> None:
    """Print what Flower prints, without its colours, which it also uses in files, and without its empty log lines."""
    with suppress(BrokenPipeError), source:
        for line in source:
            text = _ESCAPE.sub("", line.decode(errors="replace"))
            if not _EMPTY_LOG_LINE.fullmatch(text):
                target.write(text)
                target.flush()


class _TerminatedError(Exception):
    """Raised when the process is asked to end."""


class _Processes:
    """A context manager whose processes end when it exits, along with all processes that they started."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._started: dict[str, subprocess.Popen] = {}
        self._environment: Mapping[str, str] = {
            "OMP_WAIT_POLICY": "PASSIVE",  # nodes share the cores, so threads that wait must not keep them busy
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; the default, 1, would dominate a short round
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(home),  # so that the workers' sockets are removed too
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> "_Processes":
        self._before = signal.signal(signal.SIGTERM, _terminate)
        return self

    def __exit__(self, *_: object) -> None:
        handlers = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGTERM)}
        workers = _workers(self._home)
        # A server that is sending a model while its SuperLink ends does not notice it for some seconds.
        others = _descendants({process.pid for process in self._started.values()})
        for process in reversed(self._started.values()):
            _signal_group(process.pid, signal.SIGTERM)
        end = time.monotonic() + _GRACE
        for process in self._started.values():
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        while any(map(is_alive, {*workers, *others})) and time.monotonic() < end:  # they notice that Flower has ended
            time.sleep(0.1)
        for worker in workers:
            _signal_group(worker, signal.SIGKILL)
        for other in filter(is_alive, others):
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])
        signal.signal(signal.SIGTERM, self._before)

    def start(self, name: str, command: Sequence[str], shown: bool = False) -> subprocess.Popen:
        """Start a process with a process group of its own. Its output goes to a file, or to a pipe if it is shown."""
        with (self._home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if shown else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[name] = process
        return process

    def check(self, name: str) -> None:
        """Raise an error if a process has ended."""
        process = self._started[name]
        if process.poll() is not None:
            lines = (self._home / f"{name}.log").read_text(errors="replace").strip().splitlines() or ["no output"]
            raise MisconfigurationError(
                f"Flower's {name} ended with exit code {process.returncode} ({lines[-1].strip()}): run it by hand to"
                " see why"
            )

    def output(self, command: Sequence[str]) -> str:
        """Run a command and return what it prints."""
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False).stdout


def check_installed() -> None:
    """Raise an error if Flower is not installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for command in _COMMANDS:
        if shutil.which(command, path=path) is None:
            raise MisconfigurationError(
                f"{command} is missing, so Flower is not installed: pip install 'fl_lightning[flower]'"
                " (Python 3.11 or later)"
            )


def _workers(home: Path) -> list[int]:
    """Return the process ids of the nodes' workers."""
    files = home.glob("fl_lightning_*/process")
    return [int(file.read_text()) for file in files if file.read_text().isdigit()]


def _descendants(processes: set[int]) -> set[int]:
    """Return the processes that these started, and those that they started in turn, where the system lists them."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    while new := {process for process, parent in parents.items() if parent in processes | found} - found:
        found |= new
    return found


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError


def _signal_group(process: int, number: signal.Signals) -> None:
    try:
        os.killpg(process, number)
    except (ProcessLookupError, PermissionError):
        return


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for(port: int, processes: _Processes) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        processes.check("superlink")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise MisconfigurationError("Flower's superlink did not answer within 120 s: run flower-superlink to see why")
