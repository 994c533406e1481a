"""Grouping samples by class and by owner."""

import numpy as np

from fl_lightning.data.partitions.base import Indices


def cut(samples: Indices, sizes: np.ndarray) -> list[Indices]:
    """Cut an array into consecutive pieces of the given sizes."""
    ends = np.cumsum(sizes).tolist()
    return [samples[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def samples_by_class(labels: np.ndarray) -> tuple[np.ndarray, list[Indices]]:
    """Return the classes that occur and the indices of each class's samples, both in ascending order."""
    present, counts = np.unique(labels, return_counts=True)
    return present, cut(np.argsort(labels, kind="stable"), counts)


def samples_by_owner(samples: Indices, owners: np.ndarray, num_clients: int) -> list[Indices]:
    """Return each client's samples, given the owner of every sample."""
    return cut(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))
