"""What the bundled data sets have in common: tensors, a hold-out for validation, three loaders."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

#: splits are part of the data set, the same in every run, whatever the run's seed
_SPLIT_SEED = 0
_EVALUATION_BATCH = 512


class Parts(NamedTuple):
    """A data set after its splits; without a validation part, the test set is what one watches."""

    train: TensorDataset
    validation: TensorDataset | None
    test: TensorDataset


class TensorSource(LightningDataModule, ABC):
    """Data held in memory as one tensor of inputs and one of int64 labels, whose batches are taken by index.

    Args:
        batch_size: samples a training batch.
        train_fraction: share of the official training part that is used at all.
        validation_fraction: share of that which is split off, before clients share the rest, and watched from round to
            round. 0 watches the test set.
    """

    #: further facts about every training sample, such as who wrote it, for partitions by such a column
    columns: dict[str, np.ndarray]

    def __init__(self, batch_size: int = 32, train_fraction: float = 1.0, validation_fraction: float = 0.0) -> None:
        super().__init__()
        if batch_size < 1:
            raise MisconfigurationException(
                f"batch_size={batch_size}: set data.source.init_args.batch_size to 1 or more"
            )
        if not 0 < train_fraction <= 1:
            raise MisconfigurationException(
                f"train_fraction={train_fraction}, but it is the share of the training part that is used:"
                " set data.source.init_args.train_fraction in (0, 1]"
            )
        if not 0 <= validation_fraction < 1:
            raise MisconfigurationException(
                f"validation_fraction={validation_fraction}, but it is a share of the training data:"
                " set data.source.init_args.validation_fraction in [0, 1)"
            )
        self.batch_size = batch_size
        self.train_fraction = train_fraction
        self.validation_fraction = validation_fraction
        self.columns = {}
        self._parts: Parts | None = None

    @abstractmethod
    def load(self) -> Parts:
        """Reads the data and splits it; called once."""

    def setup(self, stage: str) -> None:
        """Called in every process, for every stage: the data is loaded the first time."""
        if self._parts is None:
            self._parts = self.load()

    def train_dataloader(self) -> DataLoader:
        """The training part, shuffled."""
        return DataLoader(self.parts.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """The part split off for validation; the test set if there is none."""
        return DataLoader(self.parts.validation or self.parts.test, batch_size=_EVALUATION_BATCH)

    def test_dataloader(self) -> DataLoader:
        """The test set."""
        return DataLoader(self.parts.test, batch_size=_EVALUATION_BATCH)

    @property
    def parts(self) -> Parts:
        """The data, once it is set up."""
        if self._parts is None:
            raise MisconfigurationException("the data is not set up yet: call setup('fit') first")
        return self._parts

    def split(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which samples of the official training part are for training and which for validation; none twice."""
        used = np.arange(len(labels))
        if self.train_fraction < 1:
            used, _ = stratified_split(used, labels, self.train_fraction, "train_fraction")
        if self.validation_fraction == 0:
            return used, used[:0]
        validation, train = stratified_split(used, labels[used], self.validation_fraction, "validation_fraction")
        return train, validation


def hold_out(source: TensorSource, train: TensorDataset, test: TensorDataset) -> Parts:
    """The parts of a data set that comes with a training and a test part."""
    kept, held_out = source.split(train.tensors[-1].numpy())
    return Parts(
        train if len(kept) == len(train) else TensorDataset(*train[kept]),
        TensorDataset(*train[held_out]) if len(held_out) else None,
        test,
    )


def stratified_split(
    indices: np.ndarray, labels: np.ndarray, fraction: float, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """``fraction`` of the indices, and the rest: both in order, with the classes in the proportions of the whole."""
    count = round(fraction * len(indices))
    try:
        rest, part = train_test_split(indices, test_size=count, random_state=_SPLIT_SEED, stratify=labels)
    except ValueError as error:
        raise MisconfigurationException(
            f"{name}={fraction:g} is {count} of {len(indices)} samples, too few or too many to split every class:"
            f" set data.source.init_args.{name} to another share ({error})"
        ) from error
    return np.sort(part), np.sort(rest)
