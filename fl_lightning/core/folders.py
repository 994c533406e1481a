"""The check that a folder can be written, before anything is trained."""

from pathlib import Path

from fl_lightning.core.errors import MisconfigurationError


def check_new_folder(folder: Path, setting: str) -> None:
    """Reject a folder that cannot be created, and leave none behind.

    Args:
        folder: the folder.
        setting: the setting that names it, or a folder above it.
    """
    try:
        new = [part for part in (folder, *folder.parents) if not part.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for part in new:
            part.rmdir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MisconfigurationError(
            f"the folder {str(folder)[:200]!r} cannot be used ({reason}): set {setting} to one that can be written"
        ) from error
