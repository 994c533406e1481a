"""The files through which a node's processes find each other. This file imports only the standard library."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


def is_alive(process: int) -> bool:
    """Return whether a process is running. One that has ended may stay listed until its parent waits for it."""
    if Path("/proc/self/stat").is_file():
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True)
class WorkerFolder:
    """The folder of a worker. Only its owner can open it.

    Its path is short, because the path of a socket must not be longer than about 100 characters.
    """

    path: Path

    @classmethod
    def of_supernode(cls, process: int) -> "WorkerFolder":
        """Return the folder for the worker of a SuperNode, and create it."""
        path = Path(tempfile.gettempdir(), f"fl_lightning_{os.getuid()}_{process}")
        path.mkdir(mode=0o700, exist_ok=True)
        if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o077:
            raise PermissionError(f"{path} is accessible to other users: remove it")
        return cls(path)

    def remove(self) -> None:
        """Remove the folder, when there is no worker and none is about to be started."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def socket(self) -> Path:
        """The socket on which the worker listens."""
        return self.path / "worker.sock"

    @property
    def process(self) -> Path:
        """The id of the worker's process."""
        return self.path / "process"

    @property
    def failed(self) -> Path:
        """Why the worker ended, in one line, if it failed."""
        return self.path / "failed"

    @property
    def task(self) -> Path:
        """What the worker was started for; a worker for another task is replaced."""
        return self.path / "task.json"

    @property
    def lock(self) -> Path:
        """Locked while a worker is started."""
        return self.path / "lock"
