"""Natural partitions: a column or lists in the data define which client owns each sample."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.partitions.base import Indices, Partition, checked_minimum
from fl_lightning.data.partitions.grouping import cut, samples_by_class


class ByColumn(Partition):
    """One client per value in a column of the source, such as the user who wrote a text.

    The source provides the column as ``source.columns[column]``, with one value per training sample. Clients are
    numbered in the order of their values.

    Args:
        column: name of the column.
        min_samples: values with fewer samples than this do not become clients, and their samples are unused.
    """

    needs_labels = False

    def __init__(self, column: str, min_samples: int = 1) -> None:
        self.column = column
        self.min_samples = checked_minimum(min_samples)

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        _, samples_of = samples_by_class(labels)
        large = samples_of.sizes >= self.min_samples
        if not large.any():
            most = samples_of.sizes.max()
            raise MisconfigurationError(
                f"min_samples={self.min_samples}, but no value of the column {self.column} has more than {most}"
                f" samples: set data.partition.init_args.min_samples to {most} or fewer"
            )
        return cut(samples_of.samples[np.repeat(large, samples_of.sizes)], samples_of.sizes[large])


class ByList(Partition):
    """A partition given as lists: the indices of each client's samples in the training data.

    Args:
        lists: one list of indices per client, or the path of a file that holds them. A JSON file holds a list of lists,
            or an object with one list per client; NumPy's ``.npz`` holds one array per client. Clients are numbered in
            the order of the file.
    """

    needs_labels = False

    def __init__(self, lists: str | list[list[int]]) -> None:
        self.lists = lists

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        where = self.lists if isinstance(self.lists, str) else "lists"
        lists = _read(Path(self.lists)) if isinstance(self.lists, str) else self.lists
        lists = list(lists.values()) if isinstance(lists, dict) else lists
        if not isinstance(lists, list) or not lists:
            raise MisconfigurationError(f"{where} holds no lists of indices: give one list per client")
        return [_checked(samples, len(labels), f"{where}: client {k}") for k, samples in enumerate(lists)]


def _read(path: Path) -> Any:
    """Return the content of a file of lists."""
    if not path.is_file():
        raise MisconfigurationError(
            f"lists={path}, but there is no such file: set data.partition.init_args.lists to a .json or .npz file"
        )
    try:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return [arrays[name] for name in arrays.files]
        return json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise MisconfigurationError(
            f"lists={path} is not a JSON or .npz file, or is truncated ({error}): write it again"
        ) from error


def _checked(samples: Any, total: int, client: str) -> Indices:
    """Return a client's list as an array, or raise an error if it cannot hold indices of ``total`` samples."""
    try:
        indices = np.asarray(samples)
    except ValueError:
        indices = np.empty((0, 0))
    if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
        raise MisconfigurationError(f"{client} has no flat list of whole numbers: list the indices of its samples")
    if indices.size and (indices.min() < 0 or indices.max() >= total):
        worst = indices.min() if indices.min() < 0 else indices.max()
        raise MisconfigurationError(
            f"{client} has the index {worst}, but the {total} training samples are numbered from 0 to {total - 1}:"
            " correct the index"
        )
    if len(np.unique(indices)) < len(indices):
        raise MisconfigurationError(f"{client} lists a sample twice: list every index once")
    return indices.astype(np.int64)
