"""Reading the labels of a data set, without loading its samples if that can be avoided."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from tqdm import tqdm

from fl_lightning.core.errors import MisconfigurationError

#: Where a label is: a position in every sample, a key or attribute of it, or a function of it; None searches for it.
Label = int | str | Callable[[Any], Any] | None

_DATASET_ATTRIBUTES = ("targets", "labels", "y")
_SAMPLE_NAMES = ("label", "labels", "y", "target", "targets")


@dataclass
class Labels:
    """One whole number per sample, which may be its class.

    Args:
        values: the numbers.
        origin: where they were found, such as ``sample['label']``.
        repeats: whether two samples have the same number. An index does not repeat.
    """

    values: np.ndarray
    origin: str
    repeats: bool

    def __str__(self) -> str:
        classes = len(np.unique(self.values))
        return f"Labels: {classes:,} classes, {len(self.values):,} samples, from {self.origin}"


def labels_of(dataset: Dataset, load_samples: bool = True, label: Label = None) -> Labels:
    """Return the class of every sample, and where it was found.

    ``Subset`` and ``ConcatDataset`` are unwrapped. Without ``label``, labels are read from the data set's attribute
    ``targets``, ``labels`` or ``y``; otherwise from the key or attribute ``label``, ``labels``, ``y``, ``target`` or
    ``targets`` of every sample; otherwise from the second of two entries. If a sample has more entries, its label is
    the only whole number after the first entry that repeats among the samples, because an index does not.

    Args:
        dataset: a map-style data set.
        load_samples: whether to load every sample once if there is no other way; if False, that case is an error.
        label: key, attribute or position of the label in a sample, or a function that returns a sample's label.
    """
    found = _candidates(dataset, load_samples, label)
    if not found:
        raise MisconfigurationError(
            "the data sets have no labels in common: set data.label to the name or position of a label"
        )
    if len(found) == 1:
        return found[0]
    repeating = [labels for labels in found if labels.repeats]
    if len(repeating) == 1:
        return repeating[0]
    raise MisconfigurationError(
        f"the label of a sample could be any of {', '.join(labels.origin for labels in repeating or found)}:"
        " set data.label to its position"
    )


def _candidates(dataset: Dataset, load_samples: bool, label: Label) -> list[Labels]:
    """Return everything that may be the labels; nothing for an empty data set."""
    if isinstance(dataset, Subset):
        index = np.asarray(dataset.indices, dtype=int)
        found = _candidates(dataset.dataset, load_samples, label)
        return [Labels(labels.values[index], labels.origin, labels.repeats) for labels in found]
    if isinstance(dataset, ConcatDataset):
        return _concatenate([_candidates(part, load_samples, label) for part in dataset.datasets])
    count = len(dataset)  # type: ignore[arg-type]
    if count == 0:
        return []
    for name in _DATASET_ATTRIBUTES if label is None else [label]:
        if isinstance(name, str) and _length(values := getattr(dataset, name, None)) == count:
            return [_labels(values, f"dataset.{name}")]
    if isinstance(dataset, TensorDataset) and not callable(label):
        return [_labels(dataset.tensors[i], f"sample[{i}]") for i in _positions(dataset[0], label)]
    if not load_samples:
        raise MisconfigurationError(
            f"{type(dataset).__name__} has no attribute `targets`: add one with the class of every sample"
        )
    readers = _readers(dataset[0], label)
    columns: list[list[Any]] = [[] for _ in readers]
    for index in tqdm(range(count), desc="Reading labels", leave=False, delay=2):
        sample = dataset[index]
        for column, read in zip(columns, readers.values(), strict=True):
            column.append(_plain(read(sample)))
    return [_labels(column, origin) for column, origin in zip(columns, readers, strict=True)]


def _concatenate(parts: list[list[Labels]]) -> list[Labels]:
    """Concatenate the labels of several data sets, which may keep them in different places if nothing is ambiguous."""
    parts = [found for found in parts if found]
    if any(len(found) > 1 for found in parts):
        common = set.intersection(*({labels.origin for labels in found} for found in parts))
        parts = [[labels for labels in found if labels.origin in common] for found in parts]
    return [
        Labels(
            np.concatenate([labels.values for labels in group]),
            " and ".join(dict.fromkeys(labels.origin for labels in group)),
            any(labels.repeats for labels in group),
        )
        for group in zip(*parts, strict=True)
    ]


def _readers(sample: Any, label: Label) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that may return a sample's label, by a description of what they return."""
    if callable(label):
        return {f"{getattr(label, '__name__', type(label).__name__)}(sample)": label}
    for name in _SAMPLE_NAMES if label is None else [label]:
        if isinstance(sample, Mapping) and name in sample:
            return {f"sample[{name!r}]": itemgetter(name)}
        if isinstance(name, str) and getattr(sample, name, None) is not None:
            return {f"sample.{name}": attrgetter(name)}
    return {f"sample[{position}]": itemgetter(position) for position in _positions(sample, label)}


def _positions(sample: Any, label: str | int | None) -> list[int]:
    """Return the positions in a tuple or list that may be the label."""
    entries = len(sample) if isinstance(sample, tuple | list) else 0
    if isinstance(label, int) and -entries <= label < entries:
        return [label % entries]
    if label is not None:
        raise MisconfigurationError(
            f"label={label}, but a sample is {_describe(sample)}: set data.label to the name or position of its label"
        )
    if entries == 2:
        return [1]
    positions = [position for position in range(1, entries) if _is_whole_number(sample[position])]
    if not positions:
        raise MisconfigurationError(
            f"a sample, {_describe(sample)}, has no label that can be found: set data.label to its name or position"
        )
    return positions


def _describe(sample: Any) -> str:
    """Describe a sample's type and what is in it."""
    name = f"a {type(sample).__name__}"
    if isinstance(sample, Mapping):
        return f"{name} of {', '.join(map(str, sample))}"
    if isinstance(sample, tuple | list):
        return f"{name} of {len(sample)}"
    return name


def _length(values: Any) -> int | None:
    """Return the length of a sequence, or None for anything else."""
    try:
        return len(values)
    except TypeError:
        return None


def _is_whole_number(value: Any) -> bool:
    return isinstance(plain := _plain(value), int | np.integer) and not isinstance(plain, bool)


def _plain(value: Any) -> Any:
    """Return a tensor or array with one entry as a number, and other tensors as arrays."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _labels(values: Any, origin: str) -> Labels:
    """Return labels, or raise an error if they are not one whole number per sample."""
    try:
        labels = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)
    except ValueError:  # arrays of different shapes
        labels = np.empty(len(values), dtype=object)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise MisconfigurationError(
            f"labels of shape {labels.shape} and type {labels.dtype}, from {origin}, are not classes: set data.label"
            " to where a sample has one whole number, or give the data set an attribute `targets`"
        )
    return Labels(labels, origin, len(np.unique(labels)) < len(labels))
