"""The lock that keeps two processes from writing to the folder of the same run."""

import fcntl
import os
import socket
import warnings

from fl_lightning.core.errors import MisconfigurationError, StorageError, describe_os_error
from fl_lightning.core.run_folder import RunFolder


class RunLock:
    """Locks the folder of a run until it is released. The system releases it when the process ends, however it ends.

    It is a lock of the whole process (``fcntl.lockf``) and not one of an open file (``fcntl.flock``), which the worker
    processes of a data loader would inherit and hold for some seconds after a kill.

    Args:
        folder: the folder of the run; it is created if it does not exist.

    Raises:
        MisconfigurationError: if another process has locked the folder.
        StorageError: if the folder cannot be written to.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            self._file = folder.lock.open("a+")
        except OSError as error:
            raise StorageError(f"{folder} cannot be written to: {describe_os_error(error)}") from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = self._holder()
            self._file.close()
            raise MisconfigurationError(
                f"{folder} is in use by {holder}: wait until it has ended, or stop it"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{folder} cannot be locked ({describe_os_error(error)}): make sure that no other process resumes this"
                " run at the same time",
                stacklevel=2,
            )
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
        self._file.flush()

    @property
    def lost(self) -> bool:
        """Whether the folder has been removed, possibly replaced with another, since it was locked."""
        try:
            return not os.path.samestat(os.stat(self.folder.lock), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Unlock the folder. The file stays, because another process may already be waiting for it."""
        self._file.close()

    def _holder(self) -> str:
        self._file.seek(0)
        pid, _, host = self._file.read().strip().partition(" ")
        where = f" on {host}" if host and host != socket.gethostname() else ""
        return f"process {pid}{where}" if pid else "another process"
