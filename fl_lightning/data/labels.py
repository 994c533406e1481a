"""The labels of a data set, without loading its samples where that can be avoided."""

from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from tqdm import tqdm


def labels_of(dataset: Dataset, load_samples: bool = True) -> np.ndarray:
    """The class of every sample.

    Taken from ``targets`` or ``labels`` where the data set has them (torchvision's do), from the last tensor of a
    ``TensorDataset``, through ``Subset`` and ``ConcatDataset``; otherwise every sample is loaded once, unless
    ``load_samples`` is off.
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
        raise MisconfigurationException(f"{type(dataset).__name__} has no attribute `targets`")
    samples = range(len(dataset))  # type: ignore[arg-type]
    return _as_classes([_label_of(dataset[i]) for i in tqdm(samples, desc="Reading labels", leave=False, delay=2)])


def _label_of(sample: Any) -> Any:
    if isinstance(sample, tuple | list) and len(sample) > 1:
        return sample[-1]
    raise MisconfigurationException(
        f"a sample of type {type(sample).__name__} shows no label: give the data set an attribute `targets`"
        " with the class of every sample"
    )


def _as_classes(values: Any) -> np.ndarray:
    labels = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise MisconfigurationException(
            f"labels of shape {labels.shape} and type {labels.dtype} are not classes: give the data set an attribute"
            " `targets` with one whole number a sample"
        )
    return labels
