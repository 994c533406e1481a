"""Natural partitions: the data itself says whose it is, in a column or in lists."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data.partition import Indices, Partition, checked_minimum, samples_by_class


class ByColumn(Partition):
    """A client for every value in a column of the source, such as the user who wrote a text.

    The source has the column as ``source.columns[column]``: one value a training sample. Clients are in the order of
    their values.

    Args:
        column: the name of the column.
        min_samples: values with fewer samples make no client; those samples are unused.
    """

    needs_labels = False

    def __init__(self, column: str, min_samples: int = 1) -> None:
        self.column = column
        self.min_samples = checked_minimum(min_samples)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        _, samples_of = samples_by_class(labels)
        clients = [samples for samples in samples_of if len(samples) >= self.min_samples]
        if not clients:
            most = max(map(len, samples_of))
            raise MisconfigurationException(
                f"min_samples={self.min_samples}, but no value of the column {self.column} has more than {most}:"
                f" set data.partition.init_args.min_samples to {most} or fewer"
            )
        return clients


class ByList(Partition):
    """Ready-made lists: the indices of each client's samples in the training data.

    Args:
        lists: a list of lists; or a file that holds them, JSON (a list of lists, or an object with a list a client) or
            NumPy's ``.npz`` (an array a client). Clients are in the order of the file.
    """

    needs_labels = False

    def __init__(self, lists: str | list[list[int]]) -> None:
        self.lists = lists

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        where = self.lists if isinstance(self.lists, str) else "lists"
        lists = _read(Path(self.lists)) if isinstance(self.lists, str) else self.lists
        lists = list(lists.values()) if isinstance(lists, dict) else lists
        if not isinstance(lists, list) or not lists:
            raise MisconfigurationException(f"{where} holds no lists of indices: give one list a client")
        return [_checked(samples, len(labels), f"{where}: client {k}") for k, samples in enumerate(lists)]


def _read(path: Path) -> Any:
    if not path.is_file():
        raise MisconfigurationException(f"lists={path}: there is no such file")
    try:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return [arrays[name] for name in arrays.files]
        return json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise MisconfigurationException(
            f"lists={path} is no JSON and no .npz file that can be read, or was cut off: {error}"
        ) from error


def _checked(samples: Any, total: int, whose: str) -> Indices:
    try:
        indices = np.asarray(samples)
    except ValueError:
        indices = np.empty((0, 0))
    if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
        raise MisconfigurationException(f"{whose} has no plain list of whole numbers: give the indices of its samples")
    if indices.size and (indices.min() < 0 or indices.max() >= total):
        worst = indices.min() if indices.min() < 0 else indices.max()
        raise MisconfigurationException(f"{whose} has the index {worst}, but the training data has 0 to {total - 1}")
    if len(np.unique(indices)) < len(indices):
        raise MisconfigurationException(f"{whose} has a sample twice: list every index once")
    return indices.astype(np.int64)
