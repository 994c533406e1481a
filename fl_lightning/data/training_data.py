"""The training data of all clients, loaded the way the source loads it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from fl_lightning.core.transfer import free_memory
from fl_lightning.data.batches import ClientBatches, TensorLoader
from fl_lightning.data.workers import WorkerLoader, Workers

#: settings of the source's loader that are used as they are
_LOADER_SETTINGS = (
    "num_workers",
    "pin_memory",
    "worker_init_fn",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
)


@dataclass
class TrainingData:
    """The training data of all clients, and how the source's own loader loads it.

    Args:
        dataset: samples of all clients.
        batch_size: samples per batch; None if the source's loader has a batch sampler.
        collate_fn: makes a batch from a list of samples.
        shuffle: whether clients reshuffle their samples every epoch.
        drop_last: whether clients leave out a last, partial batch.
        settings: further settings of the source's loader, such as ``num_workers``.
    """

    dataset: Dataset
    batch_size: int | None
    collate_fn: Callable[[list[Any]], Any]
    shuffle: bool = True
    drop_last: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    _workers: Workers | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_loader(cls, loader: DataLoader) -> "TrainingData":
        """Take the data set and the settings of a loader."""
        tensors = as_tensors(loader.dataset)
        dataset = loader.dataset if tensors is None else TensorDataset(*tensors)
        return cls(
            dataset,
            loader.batch_size,
            loader.collate_fn,
            _shuffles(loader),
            getattr(loader.batch_sampler, "drop_last", False),
            {name: getattr(loader, name) for name in _LOADER_SETTINGS},
        )

    @property
    def tensors(self) -> tuple[Tensor, ...] | None:
        """The data as tensors with samples along the first dimension, or None if it is not held as tensors."""
        if type(self.dataset) is TensorDataset and self.collate_fn is default_collate:
            return self.dataset.tensors
        return None

    def to(self, device: torch.device) -> "TrainingData":
        """Return the data on ``device``.

        The data is not moved if it is not held as tensors or needs more than half of the device's free memory.
        """
        tensors = self.tensors
        if tensors is None or device.type == "cpu" or not fits(tensors, device):
            return self
        moved = TensorDataset(*(tensor.to(device) for tensor in tensors))
        return TrainingData(moved, self.batch_size, self.collate_fn, self.shuffle, self.drop_last)

    def loader(self, batches: ClientBatches) -> TensorLoader | DataLoader:
        """Return a loader over one client's batches."""
        tensors = self.tensors
        if tensors is not None:
            return TensorLoader(tensors, batches)
        settings = {"collate_fn": self.collate_fn, **self.settings}
        if not self.settings.get("num_workers"):
            return DataLoader(self.dataset, batch_sampler=batches, **settings)
        if self._workers is None:
            self._workers = Workers(self.dataset, **settings)
        return WorkerLoader(self._workers, self.dataset, batches, **settings)

    def stop_workers(self) -> None:
        """Stop the worker processes, if there are any. The next loader starts new ones."""
        if self._workers is not None:
            self._workers.stop()


def _shuffles(loader: DataLoader) -> bool:
    """Return whether a loader shuffles. A loader with the user's own batch sampler is assumed to."""
    sampler: Any = loader.sampler
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    return not isinstance(sampler, SequentialSampler)


def as_tensors(dataset: Dataset) -> tuple[Tensor, ...] | None:
    """Return the tensors of a TensorDataset, looking into Subset and ConcatDataset, or None if there are none."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (tensors := as_tensors(dataset.dataset)) is not None:
        index = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return tuple(tensor[index] for tensor in tensors)
    if type(dataset) is ConcatDataset:
        parts = [tensors for part in dataset.datasets if (tensors := as_tensors(part)) is not None]
        alike = {tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors) for tensors in parts}
        if len(parts) == len(dataset.datasets) and len(alike) == 1:
            return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return None


def fits(tensors: tuple[Tensor, ...], device: torch.device) -> bool:
    """Return whether the tensors take less than half of the device's free memory."""
    return sum(tensor.nbytes for tensor in tensors) < free_memory(device) / 2
