"""A client's batches. Their order is a pure function of (seed, round, client, epoch)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from fl_lightning.core.randomness import generator_for, seed_for, seed_global_generators

#: Settings of the source's loader that are used as they are.
_LOADER_SETTINGS = (
    "num_workers",
    "pin_memory",
    "worker_init_fn",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
)


class ClientBatches(Sampler[list[int]]):
    """A batch sampler over one client's samples.

    Args:
        indices: indices of the client's samples.
        batch_size: samples per batch.
        key: (seed, round, client), which determines the order.
        merge_single: whether to merge a last batch of one sample into the previous batch, because BatchNorm cannot
            train on a single sample.
        shuffle: whether to reshuffle the samples every epoch; if False, they stay in the order of the data set.
        drop_last: whether to leave out a last, partial batch. A client with fewer samples than one batch keeps it,
            because it could not train otherwise.
    """

    def __init__(
        self,
        indices: np.ndarray,
        batch_size: int,
        key: tuple[int, int, int],
        merge_single: bool = False,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.indices = indices if shuffle else np.sort(indices)
        self.key = key
        self.shuffle = shuffle
        self.epoch = 0
        samples = len(indices)
        self.num_used = samples - samples % batch_size if drop_last and samples > batch_size else samples
        starts = list(range(0, self.num_used, batch_size))
        if merge_single and len(starts) > 1 and self.num_used - starts[-1] == 1:
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
        order = self.indices
        if self.shuffle:
            order = generator_for("batches", *self.key, self.epoch).permutation(order)
        return np.split(order[: self.num_used], self.starts[1:])

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


class Workers:
    """Worker processes that load the batches of one client after another, for as long as the run lasts.

    Args:
        dataset: samples of all clients.
        worker_init_fn: function to call once in every worker process.
        settings: further settings of the ``DataLoader``.
    """

    def __init__(self, dataset: Dataset, worker_init_fn: Callable[[int], None] | None = None, **settings: Any) -> None:
        self._dataset = _SeededDataset(dataset)
        self._tasks: list[tuple[int, list[int]]] = []
        self._settings = {
            **settings,
            "batch_sampler": self._tasks,
            "persistent_workers": True,
            "worker_init_fn": partial(_start_worker, worker_init_fn),
            "generator": torch.Generator(),  # not the global one, from which only the first client would then draw
        }
        self._loader: DataLoader | None = None
        self._iterator: Iterator[Any] = iter(())
        self._loading: object = None

    def load(self, batches: ClientBatches) -> Iterator[Any]:
        """Let the workers begin with a client's batches, and return an iterator over the loaded batches.

        Random transforms in a worker depend on the batch, not on what the worker loaded before or on how many workers
        there are. Their seed is drawn from the global generator, as any ``DataLoader`` does, so that the numbers that
        the client draws in training are the same with and without workers.
        """
        seed = int(torch.empty((), dtype=torch.int64).random_())
        self._tasks[:] = [(seed_for("batch", seed, number), batch) for number, batch in enumerate(batches)]
        self._loading = this = object()
        if self._loader is None:
            self._loader = DataLoader(self._dataset, **self._settings)
        self._iterator = iter(self._loader)
        return self._loaded(len(self._tasks), this, batches.key[-1])

    def stop(self) -> None:
        """Stop the processes. They end with the iterator, which is referred to only here."""
        self._loader, self._iterator, self._loading = None, iter(()), None

    def _loaded(self, count: int, this: object, client: int) -> Iterator[Any]:
        for _ in range(count):
            if self._loading is not this:
                raise RuntimeError(
                    f"the workers no longer load the batches of client {client}: iterate over one client's loader"
                    " at a time, or set num_workers of the source's loader to 0"
                )
            yield next(self._iterator)


class WorkerLoader(DataLoader):
    """A loader over one client's batches that uses the workers of all clients.

    It has no iterator of its own, because Lightning stops the workers of a loader's iterator after every fit.

    Args:
        workers: the worker processes.
        dataset: samples of all clients.
        batch_sampler: batches of one client.
        settings: further settings of the ``DataLoader``.
    """

    def __init__(self, workers: Workers, dataset: Dataset, batch_sampler: ClientBatches, **settings: Any) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, **settings)
        self.workers = workers

    def __iter__(self) -> Any:
        assert isinstance(self.batch_sampler, ClientBatches)
        return self.workers.load(self.batch_sampler)


class _SeededDataset(Dataset):
    """Loads a batch in a worker process, after seeding the worker's global generators."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitems__(self, task: tuple[int, list[int]]) -> list[Any]:
        seed, indices = task
        seed_global_generators(seed)
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]


def _start_worker(worker_init_fn: Callable[[int], None] | None, worker: int) -> None:
    """Call the user's function, which expects to find the user's data set in the worker's information."""
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, _SeededDataset)
    object.__setattr__(info, "dataset", info.dataset.dataset)  # torch makes it read-only
    if worker_init_fn is not None:
        worker_init_fn(worker)


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
        tensors = _as_tensors(loader.dataset)
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
        if tensors is None or device.type == "cpu" or not _fits(tensors, device):
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
    """Return whether a loader shuffles. One with a batch sampler of the user's own is assumed to."""
    sampler: Any = loader.sampler
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    return not isinstance(sampler, SequentialSampler)


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
