"""Grouping samples by class and by owner."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_lightning.data.partitions.base import Indices


class Pieces(Sequence[Indices]):
    """Consecutive pieces of one array. A piece is made when it is requested, so that many clients cost little.

    Args:
        samples: the array.
        sizes: the length of each piece; together, the length of the array or less.
    """

    def __init__(self, samples: Indices, sizes: np.ndarray) -> None:
        self.samples = samples
        self.sizes = np.asarray(sizes)
        self._ends = np.cumsum(self.sizes)

    def __getitem__(self, piece: Any) -> Any:
        if isinstance(piece, slice):
            return [self[position] for position in range(*piece.indices(len(self)))]
        end = self._ends[piece]
        return self.samples[end - self.sizes[piece] : end]

    def __len__(self) -> int:
        return len(self.sizes)


def cut(samples: Indices, sizes: np.ndarray) -> Pieces:
    """Cut an array into consecutive pieces of the given sizes."""
    return Pieces(samples, sizes)


def sizes_of(parts: Sequence[Indices]) -> np.ndarray:
    """Return the length of each part."""
    return parts.sizes if isinstance(parts, Pieces) else np.fromiter(map(len, parts), np.int64, len(parts))


def samples_by_class(labels: np.ndarray) -> tuple[np.ndarray, Pieces]:
    """Return the classes that occur and the indices of each class's samples, both in ascending order."""
    present, counts = np.unique(labels, return_counts=True)
    return present, cut(np.argsort(labels, kind="stable"), counts)


def samples_by_owner(samples: Indices, owners: np.ndarray, num_clients: int) -> Pieces:
    """Return each client's samples, given the owner of every sample."""
    return cut(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))
