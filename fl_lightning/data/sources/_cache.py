"""A cache for tensors that are slow to build from files, kept in one file next to them."""

import hashlib
import os
import uuid
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning._lightning.names import rank_zero_warn

Tensors = dict[str, Tensor]


def cached(folder: Path, name: str, fingerprint: str, make: Callable[[], Tensors]) -> Tensors:
    """Return the result of ``make``, from the cache if the cache was made from the same files.

    A broken cache is rebuilt. The file is written atomically, so several processes may call this at the same time.

    Args:
        folder: folder of the data. If it is not writable, the cache goes to the user's cache folder.
        name: name of the cache, one for each kind of content.
        fingerprint: fingerprint of everything that the content depends on, from :func:`fingerprint_of`.
        make: builds the content.
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
            f"neither {folder} nor {_user_folder()} is writable, so {name} cannot be cached and must be read again at"
            " every start: make one of them writable"
        )
    return tensors


def fingerprint_of(version: str, files: Iterable[str], folder: Path) -> str:
    """Return a hash of the files' names, sizes and modification times.

    Args:
        version: version of the code that reads the files.
        files: paths of the files.
        folder: folder above the files. Its own path is not hashed, so moved data keeps its fingerprint.
    """
    stats = ((file.removeprefix(str(folder)), os.stat(file)) for file in files)
    return _digest([version, *(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)])


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:32]


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fl_lightning"


def _read(place: Path, fingerprint: str) -> Tensors | None:
    """Return the tensors of a cache, or None if it is missing, outdated or broken."""
    try:
        content = torch.load(place, weights_only=True)
        tensors: Tensors = content["tensors"]
        valid = content["fingerprint"] == fingerprint and content["checksum"] == _checksum(tensors)
    except Exception:  # whatever is wrong, the cache can be rebuilt
        return None
    return tensors if valid else None


def _write(place: Path, fingerprint: str, tensors: Tensors) -> bool:
    """Write a cache, and return whether that was possible."""
    content = {"fingerprint": fingerprint, "checksum": _checksum(tensors), "tensors": tensors}
    part = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, part)
        os.replace(part, place)
    except (OSError, RuntimeError):  # torch's writer raises RuntimeError, for example when the disk is full
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
