import logging
import os

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.callbacks import RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import (
    IID,
    ByColumn,
    ClassesPerClient,
    ClientDatasets,
    FreshDraw,
    RandomClients,
    RedrawnPartition,
)
from fl_lightning.data.batches import ClientBatches
from tests.data.datasets import Pairs
from tests.toys import Blobs, Net, blobs, federate, identical


class Source(LightningDataModule):
    def __init__(self, loader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader


class Recorder(RoundCallback):
    """Records the cohort and the updates of every round."""

    def __init__(self) -> None:
        self.cohorts, self.updates = [], []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.cohorts.append(list(clients))

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.updates.append(update)


def set_up(source, **kwargs) -> FederatedDataModule:
    data = FederatedDataModule(source, **kwargs)
    data.setup("fit")
    return data


def test_the_users_collate_function_is_used():
    def collate(samples):
        return {"count": len(samples)}

    data = set_up(Source(DataLoader(blobs(20), batch_size=6, collate_fn=collate)), partition=IID(2))
    assert [batch["count"] for batch in data.client_loader(0, round=0)] == [6, 4]


def test_data_batch_size_and_collate_function_come_from_the_sources_loader():
    data = set_up(Source(DataLoader(Pairs(20), batch_size=4)), partition=IID(2))
    batches = list(data.client_loader(1, round=0))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    seen = sorted(int(x[0]) for inputs, _ in batches for x in inputs)
    assert seen == sorted(data.indices(1))
    assert [len(labels) for _, labels in data.client_loader(1, round=0, batch_size=9)] == [9, 1]


def test_a_list_of_data_sets_makes_one_client_per_data_set():
    data = set_up([blobs(10), blobs(25), Pairs(3)])
    assert [data.num_samples(client) for client in range(data.num_clients)] == [10, 25, 3]
    data = set_up(ClientDatasets([blobs(10), blobs(25)], validation=blobs(8), batch_size=5))
    assert data.data.tensors is not None
    inputs = torch.cat([inputs for inputs, _ in data.client_loader(0, round=0)])
    assert torch.equal(inputs.sort(0).values, blobs(10).tensors[0].sort(0).values)
    assert len(data.val_dataloader().dataset) == 8


def test_order_and_partial_batches_are_those_of_the_sources_loader():
    data = set_up(Source(DataLoader(blobs(20), batch_size=4, drop_last=True)), partition=IID(2))
    expected = blobs(20).tensors[0][np.sort(data.indices(1))]
    assert torch.equal(torch.cat([inputs for inputs, _ in data.client_loader(1, round=3)]), expected[:8])
    assert torch.equal(torch.cat([inputs for inputs, _ in data.client_loader(1, 3, keep_last=True)]), expected)
    assert [len(labels) for _, labels in data.client_loader(1, round=3, batch_size=12)] == [10]


def test_clients_with_their_own_data_sets_shuffle():
    orders = [torch.cat([x for x, _ in set_up([blobs(30)]).client_loader(0, round_)]) for round_ in range(2)]
    assert not torch.equal(*orders)


class Digits(Dataset):
    """A sample is a dictionary with a class under a name of its own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        return {"index": index, "digit": index % 3}


@pytest.mark.parametrize("label", ["digit", lambda sample: sample["digit"]])
@pytest.mark.parametrize("partition", [IID(2), ClassesPerClient(3, 1)])
def test_the_user_says_where_the_label_is(partition, label):
    data = set_up(Source(DataLoader(Digits())), partition=partition, label=label)
    assert data.labels.tolist() == [0, 1, 2] * 4


def test_the_labels_found_are_reported_in_one_line(caplog):
    with caplog.at_level(logging.INFO):
        set_up(Source(DataLoader(Pairs(20))), partition=ClassesPerClient(3, 1))
    assert caplog.messages == ["Labels: 3 classes, 20 samples, from sample[1]"]
    with caplog.at_level(logging.INFO):
        set_up(Source(DataLoader(Pairs(20))), partition=IID(3))  # reads no labels
    assert len(caplog.messages) == 1


class Observed(Dataset):
    """Has the process that loads a sample as its third entry."""

    def __init__(self) -> None:
        self.tensors, self.targets = blobs(48).tensors, blobs(48).tensors[1]

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int):
        return self.tensors[0][index], self.tensors[1][index], os.getpid()


class ProcessNet(Net):
    """Records the processes that load the training batches."""

    processes: list[int] = []  # noqa: RUF012

    def training_step(self, batch, batch_idx):
        self.processes.extend(batch[2].tolist())
        return super().training_step(batch[:2], batch_idx)


def test_clients_of_all_rounds_share_workers_and_train_as_without():
    states = []
    for num_workers in (0, 2):
        ProcessNet.processes.clear()
        torch.manual_seed(0)
        source = Source(DataLoader(Observed(), batch_size=4, shuffle=True, num_workers=num_workers))
        module, _ = federate(ProcessNet(dropout=0.3), source=source, partition=IID(3), rounds=2)
        states.append(dict(module.state_dict()))
        assert len(ProcessNet.processes) == 2 * 48
        assert len(set(ProcessNet.processes)) == max(num_workers, 1)
    assert identical(*states)
    for process in set(ProcessNet.processes):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_class_counts_count_only_the_clients_own_samples():
    data = set_up(Blobs(120), partition=ClassesPerClient(4, 2))
    labels = blobs(120).tensors[1].numpy()
    for client in range(4):
        expected = np.bincount(labels[data.indices(client)], minlength=4)
        assert data.class_counts(client).tolist() == expected.tolist()


def test_samples_are_redrawn_every_round_and_rounds_can_be_requested_in_any_order():
    data = set_up(Blobs(120), partition=FreshDraw(3, 1, 9), seed=5)
    labels = blobs(120).tensors[1].numpy()
    expected = {round_: FreshDraw(3, 1, 9).draw(labels, 5, round_) for round_ in (0, 1, 7)}
    for round_ in (7, 0, 1, 7):
        for client in range(3):
            samples = expected[round_][client]
            assert data.indices(client, round_).tolist() == samples.tolist()
            assert data.num_samples(client, round_) == len(samples)
            assert data.class_counts(client, round_).tolist() == np.bincount(labels[samples], minlength=4).tolist()
            seen = sorted(i for batch in data.client_loader(client, round_).batch_sampler for i in batch)
            assert seen == sorted(samples)


def test_an_update_reports_the_samples_of_its_round():
    recorder = Recorder()
    _, trainer = federate(partition=FreshDraw(3, 1, 9), callbacks=[recorder], rounds=3)
    data = trainer.datamodule
    expected = [data.num_samples(client, round_) for round_ in range(3) for client in range(3)]
    assert [update.num_samples for update in recorder.updates] == expected
    counts = [data.class_counts(client, round_).tolist() for round_ in range(3) for client in range(3)]
    assert [update.class_counts.tolist() for update in recorder.updates] == counts


class Shrinking(RedrawnPartition):
    """In round r, every client has the samples below ``start`` - r."""

    def __init__(self, start: int) -> None:
        super().__init__(num_clients=2)
        self.start = start

    def draw(self, labels, seed, round):
        return [np.arange(self.start - round)] * 2


@pytest.mark.parametrize(("start", "rounds_begun"), [(1, 0), (3, 3)])
def test_a_single_sample_is_refused_in_any_round_if_the_model_has_batch_norm(start, rounds_begun):
    recorder = Recorder()
    with pytest.raises(MisconfigurationError, match="client 0 has a single sample"):
        federate(Net(batch_norm=True), partition=Shrinking(start), callbacks=[recorder], rounds=4)
    assert len(recorder.cohorts) == rounds_begun


def test_a_client_that_draws_no_samples_is_refused():
    data = set_up(Blobs(), partition=Shrinking(2))
    with pytest.raises(MisconfigurationError, match="client 1 has no samples in round 2"):
        data.client_loader(1, round=2)


def test_a_partition_by_column_uses_the_sources_column():
    source = Blobs(6)
    source.columns = {"user": np.array(["b", "a", "b", "a", "c", "c"])}
    data = set_up(source, partition=ByColumn("user"))
    assert [data.indices(client).tolist() for client in range(3)] == [[1, 3], [0, 2], [4, 5]]
    assert data.class_counts(0).tolist() == [0, 1, 0, 1]


class Columns(Blobs):
    columns = {"user": [1, 2], "day": [0] * 120}  # noqa: RUF012


REGRESSION = TensorDataset(torch.arange(8.0).view(4, 2), torch.zeros(4))


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1), 0


class Unlabelled(Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int):
        return {"x": index}


@pytest.mark.parametrize("dataset", [REGRESSION, Unlabelled()])
def test_iid_needs_no_labels(dataset):
    data = set_up(Source(DataLoader(dataset, batch_size=1)), partition=IID(2))
    assert sum(data.num_samples(client) for client in range(2)) == len(dataset)
    assert data.class_counts(0) is None


def test_other_attributes_are_looked_up_on_the_source():
    data = FederatedDataModule(Blobs(samples=40), partition=IID(2))
    assert data.samples == 40
    with pytest.raises(AttributeError):
        _ = data.nothing


def test_the_sources_batch_hooks_see_its_batches_but_never_the_cohort():
    class Doubling(Blobs):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            inputs, labels = batch
            return [2 * inputs, labels]

    recorder = Recorder()
    _, trainer = federate(source=Doubling(), selection=RandomClients(count=2), callbacks=[recorder], rounds=2)
    assert recorder.cohorts == [trainer.datamodule.cohort(0), trainer.datamodule.cohort(1)]


def test_clients_whose_tensors_differ_in_shape_are_loaded_one_by_one():
    wide = TensorDataset(torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64))
    data = set_up([blobs(6), wide])
    assert data.data.tensors is None
    assert next(iter(data.client_loader(1, 0)))[0].shape == (4, 9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FederatedDataModule(Blobs(), partition=IID(2), seed=-1), "seed=-1"),
        (lambda: set_up([blobs(3), Subset(blobs(3), [])]), "client 1 has no samples"),
        (
            lambda: set_up(Source(DataLoader(blobs(9), sampler=SubsetRandomSampler([1, 2]))), partition=IID(2)),
            "SubsetRandomSampler, which clients would not use",
        ),
        (lambda: set_up(Blobs(), partition=ByColumn("user")), "column=user, but this Blobs has no columns"),
        (lambda: set_up(Columns(), partition=ByColumn("name")), "column=name, but this Columns has user, day"),
        (
            lambda: set_up(Columns(), partition=ByColumn("user")),
            r"column=user is of shape \(2,\), but the training data has 120 samples",
        ),
        (lambda: FederatedDataModule(Blobs()), "partition is missing"),
        (lambda: FederatedDataModule([blobs()], partition=IID(2)), "already has one data set per client"),
        (lambda: FederatedDataModule([]), "list of client data sets is empty"),
        (lambda: set_up([blobs(3), Pairs(0)]), "client 1 has no samples"),
        (lambda: set_up(Source([1, 2]), partition=IID(2)), "returns a list"),
        (lambda: set_up(Source(DataLoader(Endless())), partition=IID(2)), "IterableDataset"),
        (lambda: set_up(Source(DataLoader(Unlabelled())), partition=ClassesPerClient(2, 1)), "has no label"),
        (
            lambda: set_up(Source(DataLoader(REGRESSION)), partition=ClassesPerClient(2, 1)),
            "are not classes",
        ),
        (lambda: set_up(Blobs(), partition=IID(4), selection=RandomClients(count=9)), "there are 4 clients"),
        (lambda: FederatedDataModule(Blobs(), partition=IID(2)).data, "not set up"),
        (
            lambda: set_up(
                Source(DataLoader(blobs(20), batch_sampler=ClientBatches(np.arange(20), 4, (0, 0, 0)))),
                partition=IID(2),
            ).client_loader(0, 0),
            "set client.batch_size",
        ),
    ],
)
def test_data_that_cannot_be_divided_among_clients_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
