"""The batches of many clients, step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.client.vectorized.requirements import CannotVectorizeError
from fl_lightning.core.randomness import Generators
from fl_lightning.core.transfer import to_device
from fl_lightning.data.batches import TensorLoader


@dataclass(frozen=True)
class Group:
    """Clients that take the same step: their batches have the same size.

    Args:
        rows: the clients' places in the stack.
        where: ``rows`` as an index on the device; None if the group has all clients.
        batch: their batches, stacked.
        index: number of the batch in the local epoch.
    """

    rows: list[int]
    where: Tensor | None
    batch: Any
    index: int


class CohortBatches:
    """Yields the first batches of all clients, then their second batches, and so on, over all local epochs.

    Clients without a further batch are left out. A batch is never padded, because a mean loss and BatchNorm would see
    the padding; so clients whose batches differ in size form separate groups.

    Args:
        loaders: one loader per client.
        epochs: the number of local epochs, by client.
        prepare: what happens to a batch on its way to the training step; None if nothing does.
        generators: the random generators of each client, which ``prepare`` and the loaders draw from.
        by_index: whether clients of a group must also be at the same batch of their epochs.
        max_batches: maximum number of batches per epoch.
    """

    def __init__(
        self,
        loaders: Sequence[Any],
        epochs: Sequence[int],
        prepare: Callable[[Any], Any] | None,
        generators: Sequence[Generators],
        by_index: bool,
        max_batches: int | None = None,
    ) -> None:
        self._loaders = loaders
        self._epochs = epochs
        self._prepare = prepare
        self._generators = generators
        self._by_index = by_index
        self._max_batches = max_batches
        #: the number of batches per epoch, by client
        self.num_batches = [len(loader) if max_batches is None else min(len(loader), max_batches) for loader in loaders]
        #: the number of steps, by client
        self.num_steps = [batches * own for batches, own in zip(self.num_batches, epochs, strict=True)]

    def __iter__(self) -> Iterator[list[Group]]:
        if self._prepare is None and all(isinstance(loader, TensorLoader) for loader in self._loaders):
            return self._indexed()
        return self._loaded()

    def _indexed(self) -> Iterator[list[Group]]:
        """Take stacks of batches from the tensors. All indices are moved to the device at once."""
        tensors = self._loaders[0].tensors
        plans = [list(self._epochs_of(row, _index_arrays)) for row in range(len(self._loaders))]
        groups = [
            (step, rows)
            for step in range(max(self.num_steps))
            for rows in self._grouped(
                step, {row: len(plan[step]) for row, plan in enumerate(plans) if step < len(plan)}
            )
        ]
        samples = [np.stack([plans[row][step] for row in rows]) for step, rows in groups]
        indices = _on_device([*samples, *(np.array(rows) for _, rows in groups)], tensors[0].device)
        for step, numbered in groupby(enumerate(groups), key=lambda item: item[1][0]):
            yield [
                self._group(
                    step, rows, indices[len(groups) + number], [_take(part, indices[number]) for part in tensors]
                )
                for number, (_, rows) in numbered
            ]

    def _loaded(self) -> Iterator[list[Group]]:
        """Load and prepare the clients' batches one by one, then stack them."""
        streams = [self._epochs_of(row, iter) for row in range(len(self._loaders))]
        for step in range(max(self.num_steps)):
            batches = {}
            for row, stream in enumerate(streams):
                if step < self.num_steps[row]:
                    with self._generators[row]:
                        batch = next(stream)
                        batches[row] = batch if self._prepare is None else self._prepare(batch)
            shapes = {row: [leaf.shape for leaf in tree_leaves(batch)] for row, batch in batches.items()}
            groups = []
            for rows in self._grouped(step, shapes):
                batch = stack([batches[row] for row in rows])
                places = to_device(torch.tensor(rows), tree_leaves(batch)[0].device)
                groups.append(self._group(step, rows, places, batch))
            yield groups

    def _epochs_of(self, row: int, batches: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yield a client's batches of all local epochs."""
        loader = self._loaders[row]
        for epoch in range(self._epochs[row]):
            loader.batch_sampler.set_epoch(epoch)
            yield from islice(batches(loader), self._max_batches)

    def _grouped(self, step: int, sizes: Mapping[int, Any]) -> list[list[int]]:
        """Return the rows that take the same step, given the size of each row's batch."""
        groups: dict[str, list[int]] = {}
        for row, size in sizes.items():
            index = step % self.num_batches[row] if self._by_index else None
            groups.setdefault(f"{size} {index}", []).append(row)
        return list(groups.values())

    def _group(self, step: int, rows: list[int], places: Tensor, batch: Any) -> Group:
        everyone = len(rows) == len(self._loaders)
        return Group(rows, None if everyone else places, batch, step % self.num_batches[rows[0]])


def stack(batches: Sequence[Any]) -> Any:
    """Stack batches of the same structure, tensor by tensor."""
    return tree_map(lambda *leaves: torch.stack(leaves), batches[0], *batches[1:])


def check_batch(batch: Any) -> None:
    """Reject a batch that is not made of tensors."""
    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor):
            raise CannotVectorizeError(f"a batch holds a {type(leaf).__name__}, which cannot be stacked")


def _index_arrays(loader: TensorLoader) -> list[np.ndarray]:
    return loader.batch_sampler.arrays()


def _on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Move arrays of indices to the device in one transfer."""
    flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = to_device(flat, device).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.index_select(0, index.flatten()).view(*index.shape, *tensor.shape[1:])
