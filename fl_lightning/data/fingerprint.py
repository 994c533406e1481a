"""Short digests of the training data and of its partition, to see whether two runs used the same ones."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.core.randomness import preserved_generators, seed_global_generators
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.partitions.grouping import Pieces

#: how many samples are read, because reading all of them could take minutes
_SAMPLES = 16
#: how many clients' draws are computed, if clients redraw
_REDRAWN = 64


def data_fingerprint(data: FederatedDataModule) -> dict[str, Any]:
    """Describe the training data: the number of samples, a digest, and what the digest covers.

    The digest covers every label and a few whole samples, evenly spaced. It misses a change to any other sample that
    keeps the label. Reading a sample may draw random numbers, which are fixed here and then restored.
    """
    dataset: Any = data.data.dataset
    count = len(dataset)
    digest = hashlib.sha256(str(count).encode())
    covered = []
    if data.labels is not None:
        _add(digest, np.asarray(data.labels))
        covered.append("all labels")
    chosen = sorted({round(position) for position in np.linspace(0, count - 1, min(count, _SAMPLES))})
    with preserved_generators():
        seed_global_generators(0)
        for index in chosen:
            _add(digest, dataset[index])
    covered.append("all samples" if len(chosen) == count else f"{len(chosen)} of {count} samples")
    return {"samples": count, "digest": digest.hexdigest()[:16], "covers": " and ".join(covered)}


def partition_fingerprint(data: FederatedDataModule) -> dict[str, Any]:
    """Describe which client owns which samples: all clients, or a few if they redraw, because each draw takes time."""
    parts = data.all_indices()
    found: dict[str, Any] = {"clients": len(parts)}
    if data.redraws:
        parts = [parts[client] for client in range(min(len(parts), _REDRAWN))]
        found["covers"] = f"{len(parts)} of {found['clients']} clients in the first round"
    digest = hashlib.sha256()
    if isinstance(parts, Pieces):
        _add(digest, np.asarray(parts.samples, np.int64))
        _add(digest, np.asarray(parts.sizes, np.int64))
    else:
        _add(digest, np.concatenate([np.asarray(part, np.int64) for part in parts]))
        _add(digest, np.array([len(part) for part in parts], np.int64))
    return found | {"digest": digest.hexdigest()[:16]}


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest. For an object that is neither data nor a container, only the type counts."""
    digest.update(type(value).__name__.encode())
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype is torch.bfloat16 else value
        value = value.to_dense().numpy() if value.layout is not torch.strided else value.numpy()
    elif hasattr(value, "tobytes") and hasattr(value, "size") and not isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)  # a Pillow image
    if isinstance(value, np.ndarray | np.generic):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | int | float | bool | bytes | None):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for name, item in value.items():
            digest.update(str(name).encode())
            _add(digest, item)
    elif isinstance(value, Sequence):
        for item in value:
            _add(digest, item)
