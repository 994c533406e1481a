"""A client's batches. Their order is a pure function of (seed, round, client, epoch)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset, TensorDataset, default_collate

from fl_lightning.core.randomness import generator_for


class ClientBatches(Sampler[list[int]]):
    """A batch sampler over one client's samples. It reshuffles them every epoch and keeps the last, partial batch.

    Args:
        indices: indices of the client's samples.
        batch_size: samples per batch.
        key: (seed, round, client), which determines the order.
        merge_single: whether to merge a last batch of one sample into the previous batch, because BatchNorm cannot
            train on a single sample.
    """

    def __init__(
        self, indices: np.ndarray, batch_size: int, key: tuple[int, int, int], merge_single: bool = False
    ) -> None:
        self.indices = indices
        self.key = key
        self.epoch = 0
        starts = list(range(0, len(indices), batch_size))
        if merge_single and len(starts) > 1 and len(indices) - starts[-1] == 1:
            starts.pop()
        self.starts = starts

    def set_epoch(self, epoch: int) -> None:
        """Set the local epoch, which determines the order. Lightning calls this before each epoch."""
        self.epoch = epoch

    @property
    def sampler(self) -> "ClientBatches":
        """This object itself, because Lightning looks for ``set_epoch`` on a batch sampler's ``sampler``."""
        return self

    def arrays(self) -> list[np.ndarray]:
        """Return the epoch's batches as arrays of indices."""
        order = generator_for("batches", *self.key, self.epoch).permutation(self.indices)
        return np.split(order, self.starts[1:])

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.arrays():
            yield batch.tolist()

    def __len__(self) -> int:
        return len(self.starts)


class TensorLoader:
    """A loader that takes whole batches from tensors by index, without worker processes or collation.

    It yields what a ``DataLoader`` over the same ``TensorDataset`` yields, on the device of the tensors.

    Args:
        tensors: the data, with samples along the first dimension.
        batch_sampler: batches of one client.
    """

    def __init__(self, tensors: tuple[Tensor, ...], batch_sampler: ClientBatches) -> None:
        self.tensors = tensors
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[Tensor]]:
        for batch in self.batch_sampler.arrays():
            index = torch.from_numpy(batch).to(self.tensors[0].device, non_blocking=True)
            yield [tensor.index_select(0, index) for tensor in self.tensors]

    def __len__(self) -> int:
        return len(self.batch_sampler)


@dataclass
class TrainingData:
    """The training data of all clients, and how the source's own loader loads it.

    Args:
        dataset: samples of all clients.
        batch_size: samples per batch; None if the source's loader has a batch sampler.
        collate_fn: makes a batch from a list of samples.
        num_workers: number of worker processes.
        pin_memory: whether batches are copied to pinned memory.
        worker_init_fn: function to call in every worker process.
    """

    dataset: Dataset
    batch_size: int | None
    collate_fn: Callable[[list[Any]], Any]
    num_workers: int = 0
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None

    @classmethod
    def from_loader(cls, loader: DataLoader) -> "TrainingData":
        """Take the data set and the settings of a loader."""
        tensors = _as_tensors(loader.dataset)
        dataset = loader.dataset if tensors is None else TensorDataset(*tensors)
        return cls(
            dataset,
            loader.batch_size,
            loader.collate_fn,
            loader.num_workers,
            loader.pin_memory,
            loader.worker_init_fn,
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
        if tensors is None or device.type == "cpu" or not _fits(tensors, device):
            return self
        moved = TensorDataset(*(tensor.to(device) for tensor in tensors))
        return TrainingData(moved, self.batch_size, self.collate_fn)

    def loader(self, batches: ClientBatches) -> TensorLoader | DataLoader:
        """Return a loader over one client's batches."""
        tensors = self.tensors
        if tensors is not None:
            return TensorLoader(tensors, batches)
        return DataLoader(
            self.dataset,
            batch_sampler=batches,
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            worker_init_fn=self.worker_init_fn,
        )


def _as_tensors(dataset: Dataset) -> tuple[Tensor, ...] | None:
    """Return the tensors of a TensorDataset, looking into Subset and ConcatDataset, or None if there are none."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset and (tensors := _as_tensors(dataset.dataset)) is not None:
        index = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return tuple(tensor[index] for tensor in tensors)
    if type(dataset) is ConcatDataset:
        parts = [tensors for part in dataset.datasets if (tensors := _as_tensors(part)) is not None]
        alike = {tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors) for tensors in parts}
        if len(parts) == len(dataset.datasets) and len(alike) == 1:
            return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return None


def _fits(tensors: tuple[Tensor, ...], device: torch.device) -> bool:
    """Return whether the tensors take less than half of the device's free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return sum(tensor.nbytes for tensor in tensors) < free / 2
