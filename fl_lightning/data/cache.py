"""What took long to make from files, kept as one file beside them."""

import hashlib
import os
import uuid
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor

Tensors = dict[str, Tensor]


def cached(folder: Path, name: str, fingerprint: str, make: Callable[[], Tensors]) -> Tensors:
    """What ``make`` gives, from the cache if that was made from the same files.

    A cache that is broken is made anew. It is put in place in one step, so processes may do this at the same time.

    Args:
        folder: where the data is; if nothing can be written there, the cache is in the user's cache folder.
        name: of the cache, one for every kind of contents.
        fingerprint: of what the contents depend on, as :func:`fingerprint_of` gives it.
        make: makes the contents.
    """
    places = (
        folder / f"fl_lightning-{name}.cache",
        _user_folder() / f"{name}-{_digest([str(folder.resolve())])}.cache",
    )
    for place in places:
        tensors = _read(place, fingerprint)
        if tensors is not None:
            return tensors
    tensors = make()
    if not any(_write(place, fingerprint, tensors) for place in places):
        rank_zero_warn(
            f"nothing can be written to {folder} nor to {_user_folder()}: {name} are read anew at every start"
        )
    return tensors


def fingerprint_of(version: str, files: Iterable[str], folder: Path) -> str:
    """Of the files' names below the folder, their sizes and times of change, and the version of what reads them."""
    stats = ((file.removeprefix(str(folder)), os.stat(file)) for file in files)
    return _digest([version, *(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)])


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:32]


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fl_lightning"


def _read(place: Path, fingerprint: str) -> Tensors | None:
    try:
        content = torch.load(place, weights_only=True)
        tensors: Tensors = content["tensors"]
        valid = content["fingerprint"] == fingerprint and content["checksum"] == _checksum(tensors)
    except Exception:  # whatever is wrong with it, it can be made anew
        return None
    return tensors if valid else None


def _write(place: Path, fingerprint: str, tensors: Tensors) -> bool:
    content = {"fingerprint": fingerprint, "checksum": _checksum(tensors), "tensors": tensors}
    part = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, part)
        os.replace(part, place)
    except (OSError, RuntimeError):  # torch's writer raises the latter, also when the disk is full
        return False
    finally:
        with suppress(OSError):
            part.unlink()
    return True


def _checksum(tensors: Tensors) -> int:
    checksum = 0
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(tensor.contiguous().numpy().data, zlib.crc32(name.encode(), checksum))
    return checksum
