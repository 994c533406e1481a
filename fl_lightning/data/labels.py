"""Reading the labels of a data set, without loading its samples if that can be avoided."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from tqdm import tqdm

from fl_lightning.core.errors import MisconfigurationError


def labels_of(dataset: Dataset, load_samples: bool = True) -> np.ndarray:
    """Return the class of every sample.

    Labels are read from ``targets`` or ``labels`` if the data set has such an attribute, as torchvision's do, or from
    the last tensor of a ``TensorDataset``. ``Subset`` and ``ConcatDataset`` are unwrapped.

    Args:
        dataset: a map-style data set.
        load_samples: whether to load every sample once if there is no other way; if False, that case is an error.
    """
    if isinstance(dataset, Subset):
        return labels_of(dataset.dataset, load_samples)[np.asarray(dataset.indices, dtype=int)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([labels_of(part, load_samples) for part in dataset.datasets])
    for attribute in ("targets", "labels"):
        if hasattr(dataset, attribute):
            return _as_classes(getattr(dataset, attribute))
    if isinstance(dataset, TensorDataset):
        return _as_classes(dataset.tensors[-1])
    if not load_samples:
        raise MisconfigurationError(
            f"{type(dataset).__name__} has no attribute `targets`: add one with the class of every sample"
        )
    samples = range(len(dataset))  # type: ignore[arg-type]
    return _as_classes([_label_of(dataset[i]) for i in tqdm(samples, desc="Reading labels", leave=False, delay=2)])


def _label_of(sample: Any) -> Any:
    """Return the last element of a sample that is a tuple or a list."""
    if isinstance(sample, tuple | list) and len(sample) > 1:
        return sample[-1]
    raise MisconfigurationError(
        f"a sample of type {type(sample).__name__} has no label: give the data set an attribute `targets`"
        " with the class of every sample"
    )


def _as_classes(values: Any) -> np.ndarray:
    """Return labels as an array, or raise an error if they are not one integer per sample."""
    labels = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise MisconfigurationError(
            f"labels of shape {labels.shape} and type {labels.dtype} are not classes: give the data set an attribute"
            " `targets` with one whole number per sample"
        )
    return labels
