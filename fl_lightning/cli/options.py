"""Checks of options that several commands share."""

from collections.abc import Sequence
from pathlib import Path

from fl_lightning.core.errors import MisconfigurationError


def check_output_file(output: Path, suffixes: Sequence[str] = ()) -> None:
    """Reject a file for ``--output`` that cannot be written, before any work is done.

    Args:
        output: the file.
        suffixes: accepted suffixes of its name; if empty, any name is accepted.
    """
    if suffixes and output.suffix not in suffixes:
        endings = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise MisconfigurationError(f"output={output}: set --output to a file that ends in {endings}")
    if output.is_dir():
        raise MisconfigurationError(f"output={output} is a folder: set --output to a file in it")
    if not output.resolve().parent.is_dir():
        raise MisconfigurationError(f"output={output}: the folder {output.parent} does not exist, create it first")
