"""Worker processes that all clients share."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fl_lightning.core.randomness import seed_for, seed_global_generators
from fl_lightning.data.batches import ClientBatches


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
        there are. Their seed is drawn from the global generator, as in any ``DataLoader``, so that the numbers that
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
