"""A client's batches. Their order is a pure function of (seed, round, client, epoch)."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from fl_lightning.core.randomness import generator_for
from fl_lightning.core.transfer import to_device


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
        #: the Trainer's number of the round's first epoch, which is not 0 if the Trainer counts over the run
        self.first_epoch = 0
        samples = len(indices)
        self.num_used = samples - samples % batch_size if drop_last and samples > batch_size else samples
        starts = list(range(0, self.num_used, batch_size))
        if merge_single and len(starts) > 1 and self.num_used - starts[-1] == 1:
            starts.pop()
        self.starts = starts

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order. Lightning calls this before each epoch."""
        self.epoch = epoch - self.first_epoch

    @property
    def sampler(self) -> "ClientBatches":
        """This object itself, because Lightning looks for ``set_epoch`` on a batch sampler's ``sampler``."""
        return self

    def order(self) -> np.ndarray:
        """Return the indices of the epoch's samples, one batch after the other; batches begin at :attr:`starts`."""
        order = self.indices
        if self.shuffle:
            order = generator_for("batches", *self.key, self.epoch).permutation(order)
        return order[: self.num_used]

    def arrays(self) -> list[np.ndarray]:
        """Return the epoch's batches as arrays of indices."""
        return np.split(self.order(), self.starts[1:])

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.arrays():
            yield batch.tolist()

    def __len__(self) -> int:
        return len(self.starts)


class TensorLoader:
    """A loader that takes whole batches from tensors by index, without worker processes or collation.

    It yields what a ``DataLoader`` over the same ``TensorDataset`` yields, on the device of the tensors. The indices of
    a whole epoch are sent to the device at once.

    Args:
        tensors: the data, with samples along the first dimension.
        batch_sampler: batches of one client.
    """

    def __init__(self, tensors: tuple[Tensor, ...], batch_sampler: ClientBatches) -> None:
        self.tensors = tensors
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[Tensor]]:
        order = to_device(torch.from_numpy(self.batch_sampler.order()), self.tensors[0].device)
        for index in order.tensor_split(self.batch_sampler.starts[1:]):
            yield [tensor.index_select(0, index) for tensor in self.tensors]

    def __len__(self) -> int:
        return len(self.batch_sampler)
