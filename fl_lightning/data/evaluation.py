"""Loaders for validation and test: tensors are sliced, and ranks share the batches."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, default_collate

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import generator_states
from fl_lightning.data.training_data import as_tensors, fits

#: settings of a loader that do not decide which samples are in which batch
_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


@dataclass
class _Observed:
    """What is known about the steps that use a loader's batches. All copies of the loader share it.

    Args:
        untouched: whether a whole evaluation has left its batches as they were.
        last: the last batch of an evaluation that had left all others as they were, as copies and originals.
        versions: torch's counts of the changes to the tensors, taken when copying stops.
    """

    untouched: bool = False
    last: tuple[list[Tensor], list[Tensor]] | None = None
    versions: list[int] = field(default_factory=list)

    def look_at_last(self) -> None:
        """Look at the last batch, after which nobody asks the loader for another one."""
        if self.last is not None:
            self.untouched = all(map(torch.equal, *self.last))
            self.last = None


class SlicedLoader(DataLoader):
    """A DataLoader that takes whole batches from tensors, without fetching and collating single samples.

    It yields the same batches as the DataLoader that it is made from, in the same order, on the tensors' device.
    """

    tensors: tuple[Tensor, ...]
    #: the numbers of the batches that are yielded
    numbers: range
    observed: _Observed

    @classmethod
    def from_loader(cls, loader: DataLoader, device: torch.device) -> DataLoader:
        """Return a loader that slices and keeps its tensors on ``device`` if they fit there.

        A loader whose batches are not slices of tensors is returned as it is.
        """
        if type(loader) is not DataLoader or loader.collate_fn is not default_collate or not _in_order(loader):
            return loader
        tensors = as_tensors(loader.dataset)
        if tensors is None or any(type(tensor) is not Tensor or tensor.is_sparse for tensor in tensors):
            return loader
        if device.type != "cpu" and fits(tensors, device):
            tensors = tuple(tensor.to(device) for tensor in tensors)
        sliced = copy.copy(loader)
        sliced.__class__ = cls
        assert isinstance(sliced, SlicedLoader)
        sliced.tensors = tensors
        sliced.numbers = range(len(loader))
        sliced.observed = _Observed()
        return sliced

    def __iter__(self) -> Any:
        # A DataLoader draws a seed for its workers. Without this draw, random numbers in validation would change.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return self._batches()

    def __len__(self) -> int:
        return len(self.numbers)

    def _batches(self) -> Iterator[list[Tensor]]:
        assert self.batch_size is not None
        self.observed.look_at_last()
        self._check_unchanged()
        # torch does not count changes to tensors that were made in inference mode, so their batches are always copied.
        unchanged = all(tensor.is_contiguous() and not tensor.is_inference() for tensor in self.tensors)
        for number in self.numbers:
            samples = slice(number * self.batch_size, (number + 1) * self.batch_size)
            batch = [tensor[samples] for tensor in self.tensors]
            if self.observed.untouched:
                yield batch
                self._check_unchanged()
                continue
            # Steps get copies, because they may change a batch in place. If none does, later evaluations do without.
            copies = [tensor.clone(memory_format=torch.contiguous_format) for tensor in batch]
            if number == self.numbers[-1]:
                self.observed.last = (copies, batch) if unchanged else None
                yield copies
            else:
                yield copies
                unchanged = unchanged and all(map(torch.equal, copies, batch))

    def _check_unchanged(self) -> None:
        """Reject a step that has changed a batch in place although it did not get a copy."""
        if not self.observed.untouched:
            return
        versions = [tensor._version for tensor in self.tensors]
        if versions != (self.observed.versions or versions):
            raise MisconfigurationError(
                "a validation or test step changed its batch in place, but the first evaluation did not:"
                " let the step change a copy, batch.clone()"
            )
        self.observed.versions = versions


def sliced(loaders: Any, device: torch.device) -> Any:
    """Replace loaders over tensors with sliced ones; ``loaders`` is a loader, or a list or dictionary of loaders."""
    if isinstance(loaders, DataLoader):
        return SlicedLoader.from_loader(loaders, device)
    if isinstance(loaders, dict):
        return {name: sliced(loader, device) for name, loader in loaders.items()}
    if type(loaders) in (list, tuple):
        return type(loaders)(sliced(loader, device) for loader in loaders)
    if hasattr(loaders, "flattened"):  # a CombinedLoader
        loaders.flattened = [sliced(loader, device) for loader in loaders.flattened]
    return loaders


def why_not_shared(loader: Any) -> str | None:
    """Return why ranks cannot share the batches of a loader, or None if they can."""
    if type(loader) not in (DataLoader, SlicedLoader):
        return f"the loader is a {type(loader).__name__}"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset"
    if not _in_order(loader):
        kind = type(loader.sampler if loader.batch_size is not None else loader.batch_sampler)
        return f"the loader draws its batches with a {kind.__name__}"
    before = generator_states()
    if type(loader) is DataLoader and len(loader) > 0:
        loader.dataset[0]
    if generator_states() != before:
        return f"{type(loader.dataset).__name__} draws random numbers"
    return None


def share_of(loader: DataLoader, rank: int, world_size: int, limit: int) -> DataLoader:
    """Return a loader over a rank's batches: every ``world_size``-th of the first ``limit``, starting with ``rank``."""
    if isinstance(loader, SlicedLoader):
        share = copy.copy(loader)
        share.numbers = loader.numbers[:limit][rank::world_size]
        return share
    assert isinstance(loader.batch_sampler, BatchSampler)
    batches = _EveryNthBatch(loader.batch_sampler, range(len(loader))[:limit][rank::world_size])
    return DataLoader(loader.dataset, batch_sampler=batches, **{name: getattr(loader, name) for name in _SETTINGS})


class _EveryNthBatch(Sampler[list[int]]):
    """Yields some batches of a batch sampler."""

    def __init__(self, batch_sampler: BatchSampler, numbers: range) -> None:
        self.batch_sampler = batch_sampler
        self.numbers = numbers

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batch_sampler, self.numbers.start, self.numbers.stop, self.numbers.step)

    def __len__(self) -> int:
        return len(self.numbers)


def _in_order(loader: DataLoader) -> bool:
    """Return whether the loader's batches are all samples, in the order of the data set."""
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        return False
    return type(loader.sampler) is SequentialSampler and len(loader.sampler) == len(loader.dataset)  # type: ignore[arg-type]
