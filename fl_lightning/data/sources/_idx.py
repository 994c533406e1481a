"""Reading idx files, the format of MNIST: a header with the shape, then the bytes."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fl_lightning.core.errors import MisconfigurationError

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> Tensor:
    """Read the array from an idx file of bytes, plain or as .gz.

    torchvision's reader does not read .gz files and does not say which file is broken.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, str(error)) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise _broken(path, "it does not have the header of an idx file of bytes")
    dimensions = content[3]
    start = 4 * (1 + dimensions)
    if len(content) < start:
        raise _broken(path, "it ends within its header")
    shape = [int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)]
    if len(content) - start != math.prod(shape):
        raise _broken(path, f"it has {len(content) - start} bytes of data instead of {math.prod(shape)}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)


def _broken(path: Path, why: str) -> MisconfigurationError:
    """Return the error for a broken file."""
    return MisconfigurationError(f"{path} is broken ({why}): delete it and download it again")
