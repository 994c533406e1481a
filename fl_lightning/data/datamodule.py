"""Dividing the data of any LightningDataModule among clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from fl_lightning._lightning.delegation import delegate_hooks, delegate_loaders
from fl_lightning._lightning.names import LightningDataModule, rank_zero_info
from fl_lightning._lightning.package import refuse_other_copy
from fl_lightning.core.errors import MisconfigurationError, refuse_classes
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import run_seed
from fl_lightning.data.batches import ClientBatches
from fl_lightning.data.cohorts import CohortSampler
from fl_lightning.data.evaluation import sliced
from fl_lightning.data.labels import Label, Labels, labels_of
from fl_lightning.data.partitions.base import Indices, Partition, RedrawnPartition
from fl_lightning.data.partitions.grouping import Pieces, sizes_of
from fl_lightning.data.selection import AllClients, Selection
from fl_lightning.data.training_data import TrainingData

#: Integer labels that reach this number are not treated as classes.
_MAX_CLASSES = 1_000_000


class FederatedDataModule(LightningDataModule):
    """A data module that divides a source's training data among clients and selects the clients of each round.

    The data set, the batch size, the collate function, ``shuffle``, ``drop_last`` and the number of workers come from
    the source's training loader. The global model is evaluated on the source's validation and test loaders.

    Args:
        source: a LightningDataModule, which does not need to know about clients, or a list with one data set per
            client.
        partition: decides which samples each client owns; not needed if there is one data set per client.
        selection: decides which clients take part in a round; by default, all of them.
        seed: seed of the partition, the selection and the order of batches; by default, the seed of
            ``seed_everything``.
        label: where the class of a sample is: its key, attribute or position in the sample, or a function that returns
            it; by default, it is looked for in the usual places.
    """

    def __init__(
        self,
        source: LightningDataModule | Sequence[Dataset],
        partition: Partition | None = None,
        selection: Selection | None = None,
        seed: int | None = None,
        label: Label = None,
    ) -> None:
        super().__init__()
        refuse_classes(source=source, partition=partition, selection=selection)
        refuse_other_copy(source)
        if not isinstance(source, LightningDataModule):
            source = ClientDatasets(source)
        already_divided = isinstance(source, ClientDatasets)
        if already_divided and partition is not None:
            raise MisconfigurationError(
                f"partition={type(partition).__name__}, but the source already has one data set per client:"
                " leave the partition out"
            )
        if not already_divided and partition is None:
            raise MisconfigurationError(
                "partition is missing: set data.partition, which decides which samples each client owns, for example"
                " IID(num_clients=10)"
            )
        self.source = source
        self.partition = partition
        self.selection = selection or AllClients()
        self.seed = run_seed() if seed is None else seed
        check_number("seed", self.seed, at_least=0, setting="data.seed")
        self.label = label
        self.prepare_data_per_node = source.prepare_data_per_node
        self._data: TrainingData | None = None
        self._drawn_round = 0
        self._evaluation_loaders: dict[str, Any] = {}
        delegate_hooks(self, source, ["predict_dataloader"])
        delegate_loaders(self, source, ["val_dataloader", "test_dataloader"], self._slice)

    def __getattr__(self, name: str) -> Any:
        """Look up any other attribute, such as ``trainer.datamodule.num_classes``, on the source."""
        if name.startswith("_") or "source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.source, name)

    def prepare_data(self) -> None:
        """Let the source download its data. Lightning calls this in one process only."""
        self.source.trainer = self.trainer
        self.source.prepare_data()

    def setup(self, stage: str) -> None:
        """Load the source's data and divide it among the clients. Lightning calls this in every process."""
        self.source.trainer = self.trainer
        self.source.setup(stage)
        if stage == "fit" and self._data is None:
            self._partition_data()

    def teardown(self, stage: str) -> None:
        """Stop the worker processes and let the source clean up."""
        if self._data is not None:
            self._data.stop_workers()
        self._evaluation_loaders.clear()
        self.source.teardown(stage)

    def train_dataloader(self) -> DataLoader:
        """Return the loader over rounds. Its one batch per round is this rank's share of the clients that take part."""
        sampler = CohortSampler(
            self.cohort,
            size=self.num_samples,
            num_replicas=self.trainer.world_size if self.trainer else 1,
            rank=self.trainer.global_rank if self.trainer else 0,
        )
        return DataLoader(sampler.dataset, sampler=sampler, batch_size=None)

    @property
    def data(self) -> TrainingData:
        """The training data of all clients together."""
        if self._data is None:
            raise MisconfigurationError("the data is not set up yet: call setup('fit') first")
        return self._data

    def move_to(self, device: torch.device) -> None:
        """Move the training data to the device if it is held as tensors and fits there."""
        self._data = self.data.to(device)

    def validation_loaders(self) -> Any:
        """Return the loaders that the global model is validated with, or None if the source has none."""
        if "val_dataloader" not in self._evaluation_loaders and "val_dataloader" in vars(self):
            self.val_dataloader()
        return self._evaluation_loaders.get("val_dataloader")

    def adopt(self, data: TrainingData, indices: Sequence[Indices], labels: Labels | None) -> None:
        """Use training data that is already divided among the clients.

        Args:
            data: the training data of all clients together.
            indices: the indices of each client's samples.
            labels: the label of every sample, if they are known; they are classes unless they are negative or too many.
        """
        self._labels, self._num_classes = labels, _count_classes(labels)
        self._indices = indices
        self._data = data
        self.cohort(0)  # raises an error now, before training, if the selection does not fit

    @property
    def num_clients(self) -> int:
        """K, the number of clients in the federation."""
        assert self.data is not None
        return len(self._indices)

    def cohort(self, round: int) -> list[int]:
        """Return the clients that take part in ``round``, counted from 0."""
        return self.selection.cohort(self.num_clients, self.seed, round)

    @property
    def redraws(self) -> bool:
        """Whether clients draw new samples in every round."""
        return isinstance(self.partition, RedrawnPartition)

    @property
    def labels(self) -> np.ndarray | None:
        """The class of every training sample, counted from 0, or None if the labels are not classes."""
        assert self.data is not None
        return self._labels.values if self._labels is not None and self._num_classes else None

    def indices(self, client: int, round: int = 0) -> Indices:
        """Return the indices of a client's training samples. The round matters only if clients redraw."""
        samples = self._indices_in(round)[client]
        if len(samples) == 0:
            raise MisconfigurationError(
                f"client {client} has no samples in round {round}:"
                f" change {type(self.partition).__name__} so that it draws at least one"
            )
        return samples

    def num_samples(self, client: int, round: int = 0) -> int:
        """Return n_k, the number of a client's samples."""
        return len(self.indices(client, round))

    def all_indices(self) -> Sequence[Indices]:
        """Return the indices of every client's training samples; if clients redraw, as drawn for the latest round."""
        assert self.data is not None
        return self._indices

    def class_counts(self, client: int, round: int = 0) -> Tensor | None:
        """Return how many samples of each class a client has, or None if the labels are not classes."""
        labels = self.labels
        if labels is None:
            return None
        return torch.from_numpy(np.bincount(labels[self.indices(client, round)], minlength=self._num_classes))

    def client_loader(
        self,
        client: int,
        round: int,
        batch_size: int | None = None,
        merge_single: bool = False,
        keep_last: bool = False,
    ) -> Any:
        """Return a loader over a client's batches in a round.

        Args:
            client: number of the client.
            round: number of the round, counted from 0. It determines the order and, if clients redraw, the samples.
            batch_size: samples per batch; by default, the batch size of the source's loader.
            merge_single: whether to merge a last batch of one sample into the previous batch.
            keep_last: whether to keep a last, partial batch even if the source's loader drops it, for evaluation.
        """
        batch_size = batch_size or self.data.batch_size
        if batch_size is None:
            raise MisconfigurationError(
                "the source's loader has a batch sampler, which cannot be divided among clients: set client.batch_size"
            )
        batches = ClientBatches(
            self.indices(client, round),
            batch_size,
            key=(self.seed, round, client),
            merge_single=merge_single,
            shuffle=self.data.shuffle,
            drop_last=self.data.drop_last and not keep_last,
        )
        return self.data.loader(batches)

    def trial_loader(self, batch_size: int | None = None) -> Any:
        """Return a loader over one batch of training samples, with as many classes as fit, the highest ones first.

        Args:
            batch_size: samples per batch; by default, the batch size of the source's loader.
        """
        samples = self.indices(next(iter(self.cohort(0)), 0))  # a round of PoissonClients may be empty
        labels = self.labels
        if labels is not None:
            _, first_of_class = np.unique(labels, return_index=True)
            samples = np.concatenate([first_of_class[::-1], np.setdiff1d(samples, first_of_class)])
        size = min(batch_size or self.data.batch_size or 1, len(samples))
        return self.data.loader(ClientBatches(samples[:size], size, key=(self.seed, 0, 0)))

    def _slice(self, hook: str, loaders: Any) -> Any:
        """Slice the tensors of evaluation loaders, on the Trainer's device."""
        device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
        self._evaluation_loaders[hook] = sliced(loaders, device)
        return self._evaluation_loaders[hook]

    def _partition_data(self) -> None:
        """Read the source's training data and assign its samples to the clients."""
        if self.partition is None:
            assert isinstance(self.source, ClientDatasets)
            indices: Sequence[Indices] = self.source.indices()
            self._check_indices(indices)  # before the labels are read, because an empty data set has none
        loader = self.source.train_dataloader()
        if not isinstance(loader, DataLoader):
            raise MisconfigurationError(
                f"{type(self.source).__name__}.train_dataloader() returns a {type(loader).__name__}, which cannot be"
                " divided among clients: return one torch.utils.data.DataLoader"
            )
        if isinstance(loader.dataset, IterableDataset):
            raise MisconfigurationError(
                f"{type(loader.dataset).__name__} is an IterableDataset, which cannot be divided among clients:"
                " use a map-style data set"
            )
        if not isinstance(loader.sampler, SequentialSampler | RandomSampler | DistributedSampler):
            raise MisconfigurationError(
                f"the source's loader has a {type(loader.sampler).__name__}, which clients would not use because each"
                " has its own samples: give the loader a torch.utils.data.Subset of the data instead"
            )
        data = TrainingData.from_loader(loader)
        if self.label is None and (self.partition is None or not self.partition.needs_labels):
            labels = _class_labels(data.dataset)
        else:
            labels = labels_of(data.dataset, label=self.label)
        if labels is not None:
            rank_zero_info(str(labels))
        if self.partition is not None:
            indices = self.partition.assign(self._partition_key(self.partition, data.dataset, labels), self.seed)
            self._check_indices(indices)
        self.adopt(data, indices, labels)

    def _partition_key(self, partition: Partition, dataset: Dataset, labels: Labels | None) -> np.ndarray:
        """Return what the partition divides by: the labels, a column, or zeros if only the sample count matters."""
        samples = len(dataset)  # type: ignore[arg-type]
        if partition.column is None:
            return np.zeros(samples, dtype=np.int64) if labels is None else labels.values
        name = type(self.source).__name__
        columns = getattr(self.source, "columns", {})
        if partition.column not in columns:
            fix = (
                f"has {', '.join(map(str, columns))}: set data.partition.init_args.column to one of them"
                if columns
                else "has no columns (source.columns): use another partition, or a source with this column"
            )
            raise MisconfigurationError(f"column={partition.column}, but this {name} {fix}")
        values = np.asarray(columns[partition.column])
        if values.shape != (samples,):
            raise MisconfigurationError(
                f"column={partition.column} is of shape {values.shape}, but the training data has {samples} samples:"
                f" give {name}.columns one value per sample"
            )
        return values

    def _indices_in(self, round: int) -> Sequence[Indices]:
        """Return the indices of every client's samples in a round."""
        assert self.data is not None
        if self.redraws and isinstance(self.partition, RedrawnPartition) and round != self._drawn_round:
            self._indices = self.partition.draw(
                self._partition_key(self.partition, self.data.dataset, self._labels), self.seed, round
            )
            self._drawn_round = round
        return self._indices

    def _check_indices(self, indices: Sequence[Indices]) -> None:
        """Raise an error if a client has no samples."""
        if self.redraws:
            return  # samples are drawn later, and `indices` checks them then
        empty = np.flatnonzero(sizes_of(indices) == 0)
        if len(empty):
            raise MisconfigurationError(
                f"client {empty[0]} has no samples ({len(empty)} of {len(indices)} clients are empty):"
                " leave it out, or divide the data among fewer clients"
            )


class ClientDatasets(LightningDataModule):
    """A source that already has one data set per client, and data to evaluate the global model on.

    Args:
        train: one data set per client.
        validation: data on which the global model is evaluated after every round.
        test: data on which ``trainer.test`` evaluates the global model.
        batch_size: samples per batch; ``client.batch_size`` overrides it for the clients.
    """

    def __init__(
        self,
        train: Sequence[Dataset],
        validation: Dataset | None = None,
        test: Dataset | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        if len(train) == 0:
            raise MisconfigurationError("the list of client data sets is empty: give one data set per client")
        self.train = train
        self.validation = validation
        self.test = test
        self.batch_size = batch_size

    def indices(self) -> Pieces:
        """Return the indices of each client's samples in the concatenated training data."""
        sizes = np.array([len(part) for part in self.train])  # type: ignore[arg-type]
        return Pieces(np.arange(sizes.sum()), sizes)

    def train_dataloader(self) -> DataLoader:
        """Return a loader over all clients' data, concatenated."""
        return DataLoader(ConcatDataset(self.train), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        """Return a loader over the validation data, or no loaders if there is none."""
        return DataLoader(self.validation, batch_size=self.batch_size) if self.validation is not None else []

    def test_dataloader(self) -> Any:
        """Return a loader over the test data, or no loaders if there is none."""
        return DataLoader(self.test, batch_size=self.batch_size) if self.test is not None else []


def _class_labels(dataset: Dataset) -> Labels | None:
    """Return the labels if they can be read without loading samples and can be classes, otherwise None."""
    try:
        labels = labels_of(dataset, load_samples=False)
    except MisconfigurationError:
        return None
    return labels if _count_classes(labels) else None


def _count_classes(labels: Labels | None) -> int:
    """Return the number of classes, or 0 if the labels cannot be classes."""
    if labels is None or labels.values.size == 0:
        return 0
    last = int(labels.values.max())
    return last + 1 if labels.values.min() >= 0 and last < _MAX_CLASSES else 0
