"""The base class of the bundled data sets: tensors in memory, a validation split and three loaders."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning._lightning.names import LightningDataModule
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number

#: Splits are part of the data set: they are the same in every run, regardless of its seed.
_SPLIT_SEED = 0


class Parts(NamedTuple):
    """A data set after its splits. Without a validation part, models are validated on the test part."""

    train: TensorDataset
    validation: TensorDataset | None
    test: TensorDataset


class TensorSource(LightningDataModule, ABC):
    """Base class of data sets held in memory, as one tensor of inputs and one of int64 labels.

    Args:
        batch_size: samples per training batch.
        train_fraction: fraction of the official training samples to use.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        evaluation_batch_size: samples per batch of validation, test and prediction. With 128, convolutional networks
            need less memory and are often faster on a CPU.
    """

    #: Further columns with one value per training sample, such as its author, for ``ByColumn``.
    columns: dict[str, np.ndarray]

    def __init__(
        self,
        batch_size: int = 32,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__()
        check_number("batch_size", batch_size, at_least=1, setting="data.source.init_args.batch_size")
        check_number(
            "train_fraction",
            train_fraction,
            above=0,
            at_most=1,
            reason="it is the fraction of the training samples to use",
            setting="data.source.init_args.train_fraction",
        )
        check_number(
            "validation_fraction",
            validation_fraction,
            at_least=0,
            below=1,
            reason="it is a fraction of the training samples",
            setting="data.source.init_args.validation_fraction",
        )
        check_number(
            "evaluation_batch_size",
            evaluation_batch_size,
            at_least=1,
            setting="data.source.init_args.evaluation_batch_size",
        )
        self.batch_size = batch_size
        self.evaluation_batch_size = evaluation_batch_size
        self.train_fraction = train_fraction
        self.validation_fraction = validation_fraction
        self.columns = {}
        self._parts: Parts | None = None

    @abstractmethod
    def load(self) -> Parts:
        """Read the data and split it. This is called once."""

    def setup(self, stage: str) -> None:
        """Load the data if it is not loaded yet. Lightning calls this in every process and for every stage."""
        if self._parts is None:
            self._parts = self.load()

    def train_dataloader(self) -> DataLoader:
        """Return a loader over the shuffled training part."""
        return DataLoader(self.parts.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return a loader over the validation part or, without one, over the test part."""
        return DataLoader(self.parts.validation or self.parts.test, batch_size=self.evaluation_batch_size)

    def test_dataloader(self) -> DataLoader:
        """Return a loader over the test part."""
        return DataLoader(self.parts.test, batch_size=self.evaluation_batch_size)

    def predict_dataloader(self) -> DataLoader:
        """Return a loader over the test part."""
        return self.test_dataloader()

    @property
    def parts(self) -> Parts:
        """The training, validation and test parts, once the data is set up."""
        if self._parts is None:
            raise MisconfigurationError("the data is not set up yet: call setup('fit') first")
        return self._parts

    def split(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the official training samples that are used for training and for validation."""
        used = np.arange(len(labels))
        if self.train_fraction < 1:
            used, _ = stratified_split(used, labels, self.train_fraction, "train_fraction")
        if self.validation_fraction == 0:
            return used, used[:0]
        validation, train = stratified_split(used, labels[used], self.validation_fraction, "validation_fraction")
        return train, validation


def hold_out(source: TensorSource, train: TensorDataset, test: TensorDataset) -> Parts:
    """Hold out the source's validation fraction from a data set that comes with a training and a test part."""
    kept, held_out = source.split(train.tensors[-1].numpy())
    return Parts(
        train if len(kept) == len(train) else TensorDataset(*train[kept]),
        TensorDataset(*train[held_out]) if len(held_out) else None,
        test,
    )


def stratified_split(
    indices: np.ndarray, labels: np.ndarray, fraction: float, name: str, fix: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split indices into a random ``fraction`` and the rest, both sorted and with the class proportions of the whole.

    Args:
        indices: indices to split.
        labels: class of each index.
        fraction: size of the first part.
        name: name of the fraction in error messages.
        fix: fix that error messages suggest; by default, to set the argument ``name`` of the source.
    """
    from sklearn.model_selection import train_test_split  # imported late, because commands without data do not need it

    count = round(fraction * len(indices))
    try:
        rest, part = train_test_split(indices, test_size=count, random_state=_SPLIT_SEED, stratify=labels)
    except ValueError as error:
        raise MisconfigurationError(
            f"{name}={fraction:g} is {count} of {len(indices)} samples, too few or too many to split every class"
            f" ({error}): {fix or f'set data.source.init_args.{name} to another fraction'}"
        ) from error
    return np.sort(part), np.sort(rest)
