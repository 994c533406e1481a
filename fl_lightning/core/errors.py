"""Errors that are explained in one line, and a check for the most common mistake."""

import errno
import os
from typing import Any


class MisconfigurationError(Exception):
    """Raised for a setting that cannot work. The message names the value, the limit and the fix, in one line.

    The command prints it without a traceback and exits with code 2. It is not Lightning's own
    ``MisconfigurationException``, because ``lightning`` and ``pytorch_lightning`` each have their own copy of that.
    """


class RoundFailedError(Exception):
    """Raised if a round cannot be completed, because a client failed or too few clients are left.

    The global model and the last checkpoint stay as they were after the previous round. The message names the round
    (counted from 1), the reason and, if a client failed, the client, in one line. The command prints it without a
    traceback and exits with code 1.
    """


def refuse_classes(**arguments: Any) -> None:
    """Reject a class that is given where an object is needed: ``aggregator=FedAvg`` instead of ``FedAvg()``."""
    for name, value in arguments.items():
        if isinstance(value, type):
            raise MisconfigurationError(
                f"{name} is the class {value.__name__}: create an object, {value.__name__}(...)"
            )


class StorageError(Exception):
    """Raised if a run's files cannot be written: the disk is full or read-only, or the folder has vanished.

    It is not a mistake in the configuration. The command prints it without a traceback and exits with code 1.
    """


#: errors that the disk causes, not the program that writes to it
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG)


def find_disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of a disk that is full, read-only, broken or gone, even if other errors wrap it, or None."""
    while error is not None and not (isinstance(error, OSError) and error.errno in _DISK_ERRORS):
        error = error.__cause__
    return error


def misses_file_in(error: BaseException | None, folder: str) -> bool:
    """Return whether an error says that a file in the folder does not exist, even if other errors wrap it."""
    while error is not None:
        if isinstance(error, FileNotFoundError) and os.fsdecode(error.filename or "").startswith(folder):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_os_error(error: OSError) -> str:
    """Return the system's words for an error, such as ``No space left on device``."""
    return error.strerror or str(error)
