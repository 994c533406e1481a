"""A check before training that a folder can be written to."""

import tempfile
from pathlib import Path

from fl_lightning.core.errors import MisconfigurationError


def check_new_folder(folder: Path, setting: str) -> None:
    """Reject a folder that cannot be created or written to.

    It is not created, because other processes may check the same folder at the same time.

    Args:
        folder: the folder.
        setting: the setting that names it, or a folder above it.
    """
    try:
        if "\0" in str(folder):
            raise ValueError("its name has a zero byte")
        existing = next(part for part in (folder, *folder.absolute().parents) if part.exists())
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MisconfigurationError(
            f"the folder {str(folder)[:200]!r} cannot be used ({reason}): set {setting} to one that can be written to"
        ) from error
