"""Flower's process per message, forked from a process that has imported Flower already.

A SuperNode runs the command ``flwr-clientapp`` for every message, and that command spends over a second on imports. A
:class:`Launcher` puts another ``flwr-clientapp`` first on the path. It passes its options on to a process that has
imported Flower and forks; the fork runs Flower's own command.
"""

import json
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

from fl_lightning.flower import hand_over
from fl_lightning.flower.node_folder import is_alive

_COMMAND = "flwr-clientapp"
#: how often the launcher checks whether its SuperNode is still running, in seconds
_CHECK_INTERVAL = 0.5


class Launcher:
    """A context manager in which processes that are started from here find the faster ``flwr-clientapp``."""

    def __enter__(self) -> "Launcher":
        self._folder = tempfile.TemporaryDirectory(prefix="fl_lightning_")
        self._path = os.environ["PATH"]
        folder = Path(self._folder.name)
        with socket.socket(socket.AF_UNIX) as listener:
            # It listens before the launcher has imported anything, so early messages wait and are not lost.
            listener.bind(str(folder / "socket"))
            listener.listen(100)
            arguments = ["-m", "fl_lightning.flower.launcher", str(listener.fileno()), str(os.getpid())]
            self._process = subprocess.Popen([sys.executable, *arguments], pass_fds=[listener.fileno()])
        own = [sys.executable, "-IS", str(hand_over.__file__), str(folder / "socket"), self._path]
        script = folder / _COMMAND
        script.write_text(f'#!/bin/sh\nexec {shlex.join(own)} "$@"\n')
        script.chmod(0o700)
        os.environ["PATH"] = f"{folder}{os.pathsep}{self._path}"
        return self

    def __exit__(self, *_: object) -> None:
        os.environ["PATH"] = self._path
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def main() -> None:
    """Fork once for every list of options that arrives, until the SuperNode ends."""
    listener, supernode = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    (entry,) = entry_points(group="console_scripts", name=_COMMAND)
    entry.load()
    import fl_lightning.flower.apps  # noqa: F401

    fork = multiprocessing.get_context("fork")
    listener.settimeout(_CHECK_INTERVAL)
    while is_alive(supernode):
        multiprocessing.active_children()  # waits for those that have ended
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, connection.makefile("rb") as stream:
            options = json.load(stream)
        fork.Process(target=_run, args=(options, listener)).start()


def _run(options: list[str], listener: socket.socket) -> None:
    listener.close()
    (entry,) = entry_points(group="console_scripts", name=_COMMAND)
    sys.argv = [_COMMAND, *options]
    sys.exit(entry.load()())


if __name__ == "__main__":
    main()
