"""Any LightningDataModule, shared out among clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
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

from fl_lightning.data.batches import ClientBatches, TrainingData
from fl_lightning.data.cohorts import CohortSampler
from fl_lightning.data.labels import labels_of
from fl_lightning.data.partition import Indices, Partition, RedrawnPartition
from fl_lightning.data.selection import AllClients, Selection
from fl_lightning.delegation import delegate_hooks
from fl_lightning.randomness import run_seed

#: integer labels beyond this are no classes to count
_MOST_CLASSES = 1_000_000
_OF_THE_SOURCE = ("val_dataloader", "test_dataloader", "predict_dataloader")


class FederatedDataModule(LightningDataModule):
    """The clients' data, and the loader over the clients of each round.

    From the source's training loader come the data set, the batch size and the collate function; its validation and
    test loaders evaluate the global model.

    Args:
        source: a LightningDataModule that need not know of clients; or ready-made data, a list with one data set a
            client.
        partition: which samples a client owns. Not for ready-made data.
        selection: which clients take part in a round; by default all.
        seed: of the partition, the selection and the order of batches; by default that of ``seed_everything``.
    """

    def __init__(
        self,
        source: LightningDataModule | Sequence[Dataset],
        partition: Partition | None = None,
        selection: Selection | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(source, LightningDataModule):
            source = ClientDatasets(source)
        ready_made = isinstance(source, ClientDatasets)
        if ready_made and partition is not None:
            raise MisconfigurationException(
                f"partition={type(partition).__name__}, but the data comes ready-made per client: leave one of them out"
            )
        if not ready_made and partition is None:
            raise MisconfigurationException(
                "partition is missing: say which samples a client owns, for example IID(num_clients=10)"
            )
        self.source = source
        self.partition = partition
        self.selection = selection or AllClients()
        self.seed = run_seed() if seed is None else seed
        if self.seed < 0:
            raise MisconfigurationException(f"seed={self.seed}: set data.seed to 0 or more")
        self.prepare_data_per_node = source.prepare_data_per_node
        self._data: TrainingData | None = None
        self._drawn_round = 0
        delegate_hooks(self, source, _OF_THE_SOURCE)

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of the data, such as ``trainer.datamodule.num_classes``, is the source's."""
        if name.startswith("_") or "source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.source, name)

    def prepare_data(self) -> None:
        """Called in one process only: the source downloads here."""
        self.source.prepare_data()

    def setup(self, stage: str) -> None:
        """Called in every process: loads the source's data and shares it out."""
        self.source.trainer = self.trainer
        self.source.setup(stage)
        if stage == "fit" and self._data is None:
            self._share_out()

    def teardown(self, stage: str) -> None:
        """Called at the end."""
        self.source.teardown(stage)

    def train_dataloader(self) -> DataLoader:
        """One batch a round: this rank's share of the clients that take part."""
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
            raise MisconfigurationException("the data is not set up yet: call setup('fit') first")
        return self._data

    def move_to(self, device: torch.device) -> None:
        """Keeps the training data on the device, if it is held as tensors and fits."""
        self._data = self.data.to(device)

    @property
    def num_clients(self) -> int:
        """K, the number of all clients."""
        assert self.data is not None
        return len(self._indices)

    def cohort(self, round: int) -> list[int]:
        """The clients of a round, counted from 0."""
        return self.selection.cohort(self.num_clients, self.seed, round)

    @property
    def redraws(self) -> bool:
        """Whether clients have other samples in every round."""
        return isinstance(self.partition, RedrawnPartition)

    @property
    def labels(self) -> np.ndarray | None:
        """The class of every sample of the training data, from 0; None where there are no classes."""
        assert self.data is not None
        return self._labels if self._num_classes else None

    def indices(self, client: int, round: int = 0) -> Indices:
        """Which samples of the training data a client owns; the round matters only if the partition redraws."""
        samples = self._shares(round)[client]
        if len(samples) == 0:
            raise MisconfigurationException(
                f"client {client} has no samples in round {round}: give it some in {type(self.partition).__name__}"
            )
        return samples

    def num_samples(self, client: int, round: int = 0) -> int:
        """n_k."""
        return len(self.indices(client, round))

    def class_counts(self, client: int, round: int = 0) -> Tensor | None:
        """How many samples of each class a client owns; None where the labels are not classes."""
        labels = self.labels
        if labels is None:
            return None
        return torch.from_numpy(np.bincount(labels[self.indices(client, round)], minlength=self._num_classes))

    def client_loader(self, client: int, round: int, batch_size: int | None = None, merge_single: bool = False) -> Any:
        """A client's batches in a round.

        Args:
            client: the client's number.
            round: counted from 0; the order of the batches depends on it, and the samples if the partition redraws.
            batch_size: by default that of the source's loader.
            merge_single: whether a last batch of one sample joins the one before.
        """
        batch_size = batch_size or self.data.batch_size
        if batch_size is None:
            raise MisconfigurationException(
                "the source's loader has a batch sampler of its own, which cannot be shared out among clients:"
                " set client.batch_size"
            )
        key = (self.seed, round, client)
        return self.data.loader(ClientBatches(self.indices(client, round), batch_size, key, merge_single))

    def _share_out(self) -> None:
        loader = self.source.train_dataloader()
        if not isinstance(loader, DataLoader):
            raise MisconfigurationException(
                f"{type(self.source).__name__}.train_dataloader() gives a {type(loader).__name__}:"
                " to be shared out among clients it must be one torch.utils.data.DataLoader"
            )
        if isinstance(loader.dataset, IterableDataset):
            raise MisconfigurationException(
                f"{type(loader.dataset).__name__} is an IterableDataset: to be shared out among clients"
                " its samples must have an index"
            )
        if not isinstance(loader.sampler, SequentialSampler | RandomSampler | DistributedSampler):
            raise MisconfigurationException(
                f"the source's loader has a {type(loader.sampler).__name__}, which clients would not use, for each"
                " draws from its own samples: give the loader a torch.utils.data.Subset of the data instead"
            )
        if self.partition is None:
            assert isinstance(self.source, ClientDatasets)
            self._indices: Sequence[Indices] = self.source.indices()
            self._check_indices()  # before the data sets are looked into: an empty one shows no labels
        data = TrainingData.from_loader(loader)
        if self.partition is None or not self.partition.needs_labels:
            self._labels = _labels_if_classes(data.dataset)
        else:
            self._labels = labels_of(data.dataset)
        self._num_classes = _number_of_classes(self._labels)
        if self.partition is not None:
            self._indices = self.partition.assign(self._what_decides(self.partition, data.dataset), self.seed)
            self._check_indices()
        self._data = data
        self.cohort(0)  # a selection that does not fit shows before anything is trained

    def _what_decides(self, partition: Partition, dataset: Dataset) -> np.ndarray:
        """What the partition looks at: labels, a column, or nothing but the number of samples."""
        samples = len(dataset)  # type: ignore[arg-type]
        if partition.column is None:
            return np.zeros(samples, dtype=np.int64) if self._labels is None else self._labels
        name = type(self.source).__name__
        columns = getattr(self.source, "columns", {})
        if partition.column not in columns:
            fix = (
                f"has {', '.join(map(str, columns))}: set data.partition.init_args.column to one of them"
                if columns
                else "has no columns (source.columns): use another partition, or data that says whose it is"
            )
            raise MisconfigurationException(f"column={partition.column}, but this {name} {fix}")
        values = np.asarray(columns[partition.column])
        if values.shape != (samples,):
            raise MisconfigurationException(
                f"column={partition.column} is of shape {values.shape}, but the training data has {samples} samples:"
                f" give {name}.columns one value a sample"
            )
        return values

    def _shares(self, round: int) -> Sequence[Indices]:
        """Every client's samples in a round."""
        assert self.data is not None
        if isinstance(self.partition, RedrawnPartition) and round != self._drawn_round:
            self._indices = self.partition.draw(self._what_decides(self.partition, self.data.dataset), self.seed, round)
            self._drawn_round = round
        return self._indices

    def _check_indices(self) -> None:
        if self.redraws:
            return  # drawn when they are needed, and looked at then
        empty = [client for client, samples in enumerate(self._indices) if len(samples) == 0]
        if empty:
            raise MisconfigurationException(
                f"client {empty[0]} has no samples ({len(empty)} of {len(self._indices)} clients are empty):"
                " leave it out, or share the data among fewer clients"
            )


class ClientDatasets(LightningDataModule):
    """Ready-made data: one data set a client, and data to evaluate the global model on.

    Args:
        train: one data set a client.
        validation: evaluates the global model after every round.
        test: evaluates it in ``trainer.test``.
        batch_size: samples a batch; ``client.batch_size`` overrides it for the clients.
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
            raise MisconfigurationException("the list of client data sets is empty: give one data set a client")
        self.train = train
        self.validation = validation
        self.test = test
        self.batch_size = batch_size

    def indices(self) -> list[np.ndarray]:
        """Where each client's samples stand in the training data."""
        ends = np.cumsum([len(part) for part in self.train])  # type: ignore[arg-type]
        return np.split(np.arange(ends[-1]), ends[:-1])

    def train_dataloader(self) -> DataLoader:
        """All clients' data, one after the other."""
        return DataLoader(ConcatDataset(self.train), batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        """The validation data, if any."""
        return DataLoader(self.validation, batch_size=self.batch_size) if self.validation is not None else []

    def test_dataloader(self) -> Any:
        """The test data, if any."""
        return DataLoader(self.test, batch_size=self.batch_size) if self.test is not None else []


def _labels_if_classes(dataset: Dataset) -> np.ndarray | None:
    """The labels if the data set shows them, and they can be classes."""
    try:
        labels = labels_of(dataset, load_samples=False)
    except MisconfigurationException:
        return None
    return labels if _number_of_classes(labels) else None


def _number_of_classes(labels: np.ndarray | None) -> int:
    """0 if the labels are no classes."""
    if labels is None or labels.size == 0 or labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        return 0
    return int(labels.max()) + 1
