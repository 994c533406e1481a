"""Files written with ``torch.save``. A kill or a power cut never leaves a broken one, and every read verifies it.

``torch.save`` writes a zip archive, which holds a checksum (CRC-32) of every tensor in it. ``torch.load`` ignores the
checksums, so it loads a file with a flipped bit without complaint.
"""

import os
import pickle
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fl_lightning.core.errors import StorageError, describe_os_error

#: suffix of a file that is not complete
PART = ".part"


class DamagedFileError(Exception):
    """Raised for a file that cannot be trusted. The message completes a sentence that begins with the file's name."""


def write_saved_file(content: Any, path: Path) -> None:
    """Write a file with ``torch.save``, verify it, and only then give it its name.

    Raises:
        StorageError: if it cannot be written. A file that had the name before is kept.
    """
    part = path.with_name(path.name + PART)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        verify_checksums(part)
        replace_durably(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        name = str(path).removesuffix(PART)
        # torch's writer raises a RuntimeError if the disk is full, and keeps the system's error as its context
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            raise StorageError(f"{name} could not be written: {describe_os_error(cause)}") from error
        if isinstance(error, DamagedFileError):
            raise StorageError(f"{name} could not be written: what was written {error}") from error
        raise


def replace_durably(part: Path, path: Path) -> None:
    """Rename a file so that the new name survives a power cut."""
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_saved_file(path: Path, map_location: Any = "cpu", weights_only: bool = True) -> Any:
    """Verify and load a file. By default, it may hold only tensors and plain types, so nothing in it is executed.

    Args:
        path: the file.
        map_location: where the tensors are loaded, as for ``torch.load``.
        weights_only: False also loads other objects, which can run any code. Use it only for files that you trust.

    Raises:
        DamagedFileError: if it is not a file of ``torch.save``, is damaged, or holds other objects.
    """
    verify_checksums(path)
    try:
        return torch.load(path, map_location=map_location, weights_only=weights_only)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        named = f" ({found.group(1)})" if found else ""
        raise DamagedFileError(f"holds objects{named} that could run code, so it is not loaded") from error
    except Exception as error:
        raise DamagedFileError("cannot be read") from error


def verify_checksums(path: Path) -> None:
    """Check that a file is a complete archive, and compare everything in it with its checksum.

    Raises:
        DamagedFileError: if the file is not an archive, or is damaged.
    """
    if path.stat().st_size == 0:
        raise DamagedFileError("is empty")
    try:
        if not zipfile.is_zipfile(path):
            raise DamagedFileError("is not a checkpoint, or it is truncated")
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except DamagedFileError:
        raise
    except Exception as error:  # a flipped bit in a header can cause almost any error
        raise DamagedFileError("is damaged") from error
    if wrong is not None:
        raise DamagedFileError(f"is damaged: the checksum of {wrong.partition('/')[2]} is wrong")
