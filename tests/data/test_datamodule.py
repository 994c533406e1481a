import numpy as np
import pytest
import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from fl_lightning import FederatedDataModule
from fl_lightning.data import (
    IID,
    ByColumn,
    ClassesPerClient,
    ClientDatasets,
    FreshDraw,
    RandomClients,
    RedrawnPartition,
)
from fl_lightning.data.batches import ClientBatches, TensorLoader, TrainingData
from fl_lightning.data.cohorts import CohortSampler
from fl_lightning.data.labels import labels_of
from tests.callbacks.test_server import Keep
from tests.toys import Blobs, Net, blobs, federate


class Pairs(Dataset):
    """A map-style data set without tensors or targets."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return torch.full((3,), float(index)), index % 3


class Source(LightningDataModule):
    def __init__(self, loader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader


def set_up(source, **kwargs) -> FederatedDataModule:
    data = FederatedDataModule(source, **kwargs)
    data.setup("fit")
    return data


def test_batches_cover_the_clients_samples_once_an_epoch_and_are_reshuffled():
    batches = ClientBatches(np.arange(100, 117), batch_size=5, key=(0, 0, 0))
    first = list(batches)
    batches.set_epoch(1)
    second = list(batches)
    assert [len(batch) for batch in first] == [5, 5, 5, 2] == [len(batch) for batch in second]
    for epoch in (first, second):
        assert sorted(sample for batch in epoch for sample in batch) == list(range(100, 117))
    assert first != second


@pytest.mark.parametrize(("samples", "expected"), [(11, [5, 6]), (12, [5, 5, 2]), (10, [5, 5]), (1, [1])])
def test_a_last_batch_of_one_joins_the_one_before_where_batch_norm_needs_it(samples, expected):
    batches = ClientBatches(np.arange(samples), batch_size=5, key=(0, 0, 0), merge_single=True)
    assert [len(batch) for batch in batches] == expected
    assert len(batches) == len(expected)


def test_the_order_depends_on_seed_round_client_and_epoch_alone():
    def order(*key: int) -> list[list[int]]:
        return list(ClientBatches(np.arange(50), 50, key))

    assert order(1, 2, 3) == order(1, 2, 3)
    assert len({str(order(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)]}) == 5


def test_tensors_are_batched_as_a_dataloader_would():
    batches = ClientBatches(np.arange(3, 20), batch_size=4, key=(0, 0, 0))
    dataset = blobs(30)
    slow = DataLoader(dataset, batch_sampler=batches)
    for fast, expected in zip(TensorLoader(dataset.tensors, batches), slow, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(fast, expected, strict=True))


@pytest.mark.parametrize("dataset", [Subset(blobs(30), [3, 5, 7]), ConcatDataset([blobs(4), Subset(blobs(30), [9])])])
def test_tensors_behind_subsets_and_concatenations_are_found(dataset):
    tensors = TrainingData.from_loader(DataLoader(dataset)).tensors
    expected = [dataset[i] for i in range(len(dataset))]
    assert torch.equal(tensors[0], torch.stack([x for x, _ in expected]))
    assert torch.equal(tensors[1], torch.stack([y for _, y in expected]))


def test_a_collate_function_of_the_users_is_used():
    def collate(samples):
        return {"count": len(samples)}

    data = set_up(Source(DataLoader(blobs(20), batch_size=6, collate_fn=collate)), partition=IID(2))
    assert [batch["count"] for batch in data.client_loader(0, round=0)] == [6, 4]


def test_data_batch_size_and_collation_come_from_the_sources_loader():
    data = set_up(Source(DataLoader(Pairs(20), batch_size=4)), partition=IID(2))
    batches = list(data.client_loader(1, round=0))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    seen = sorted(int(x[0]) for inputs, _ in batches for x in inputs)
    assert seen == sorted(data.indices(1))
    assert [len(labels) for _, labels in data.client_loader(1, round=0, batch_size=9)] == [9, 1]


def test_ready_made_data_is_one_client_a_data_set():
    data = set_up([blobs(10), blobs(25), Pairs(3)])
    assert [data.num_samples(client) for client in range(data.num_clients)] == [10, 25, 3]
    data = set_up(ClientDatasets([blobs(10), blobs(25)], validation=blobs(8), batch_size=5))
    assert data.data.tensors is not None
    inputs = torch.cat([inputs for inputs, _ in data.client_loader(0, round=0)])
    assert torch.equal(inputs.sort(0).values, blobs(10).tensors[0].sort(0).values)
    assert len(data.val_dataloader().dataset) == 8


def test_class_counts_are_the_clients_own():
    data = set_up(Blobs(120), partition=ClassesPerClient(4, 2))
    labels = blobs(120).tensors[1].numpy()
    for client in range(4):
        expected = np.bincount(labels[data.indices(client)], minlength=4)
        assert data.class_counts(client).tolist() == expected.tolist()


def test_labels_are_found_wherever_data_sets_keep_them():
    with_targets = Pairs(4)
    with_targets.targets = [2, 1, 0, 1]
    assert labels_of(with_targets).tolist() == [2, 1, 0, 1]
    assert labels_of(Subset(with_targets, [3, 0])).tolist() == [1, 2]
    assert labels_of(Pairs(5)).tolist() == [0, 1, 2, 0, 1]
    assert labels_of(ConcatDataset([Pairs(2), with_targets])).tolist() == [0, 1, 2, 1, 0, 1]


def test_every_rank_gets_its_share_of_the_cohort_and_the_largest_clients_are_spread():
    sizes = [100, 1, 1, 1, 90, 5]
    shares = [
        CohortSampler(lambda _: list(range(6)), lambda client, _: sizes[client], num_replicas=2, rank=rank)
        for rank in range(2)
    ]
    first, second = (next(iter(sampler)) for sampler in shares)
    assert sorted(first + second) == list(range(6))
    assert 0 in first
    assert 4 in second
    idle = CohortSampler(lambda _: [3], lambda client, _: sizes[client], num_replicas=2, rank=1)
    assert list(idle) == [[]]


def test_the_cohort_is_that_of_the_epoch_set_last():
    sampler = CohortSampler(lambda round_: [round_], lambda client, round_: 1)
    iterator = iter(sampler)
    sampler.set_epoch(7)
    assert list(iterator) == [[7]]


def test_the_clients_of_a_round_are_spread_by_their_sizes_in_that_round():
    sampler = CohortSampler(lambda _: [0, 1, 2], lambda client, round_: [3, 2, 2][client - round_], 2, rank=0)
    shares = []
    for round_ in range(3):
        sampler.set_epoch(round_)
        shares += list(sampler)
    assert shares == [[0], [1], [2]]


def test_what_a_client_has_is_redrawn_every_round_and_can_be_asked_for_in_any_order():
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
    keep = Keep()
    _, trainer = federate(partition=FreshDraw(3, 1, 9), callbacks=[keep], rounds=3)
    data = trainer.datamodule
    expected = [data.num_samples(client, round_) for round_ in range(3) for client in range(3)]
    updates = [update for round_ in keep.updates for update, _ in round_]
    assert [update.num_samples for update in updates] == expected
    counts = [data.class_counts(client, round_).tolist() for round_ in range(3) for client in range(3)]
    assert [update.class_counts.tolist() for update in updates] == counts


class Shrinking(RedrawnPartition):
    """Client k of round r has the samples from 0 to ``start`` - r."""

    def __init__(self, start: int) -> None:
        super().__init__(num_clients=2)
        self.start = start

    def draw(self, labels, seed, round):
        return [np.arange(self.start - round)] * 2


@pytest.mark.parametrize(("start", "rounds_begun"), [(1, 0), (3, 3)])
def test_a_single_sample_is_refused_where_batch_norm_needs_two_in_whichever_round(start, rounds_begun):
    keep = Keep()
    with pytest.raises(MisconfigurationException, match="client 0 has a single sample"):
        federate(Net(batch_norm=True), partition=Shrinking(start), callbacks=[keep], rounds=4)
    assert len(keep.cohorts) == rounds_begun


def test_a_client_that_draws_nothing_is_refused():
    data = set_up(Blobs(), partition=Shrinking(2))
    with pytest.raises(MisconfigurationException, match="client 1 has no samples in round 2"):
        data.client_loader(1, round=2)


def test_a_partition_by_column_looks_at_the_sources_column():
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


def test_whatever_else_is_asked_of_the_data_is_the_sources():
    data = FederatedDataModule(Blobs(samples=40), partition=IID(2))
    assert data.samples == 40
    with pytest.raises(AttributeError):
        _ = data.nothing


def test_the_sources_batch_hooks_see_its_batches_and_never_the_cohort():
    class Doubling(Blobs):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            inputs, labels = batch
            return [2 * inputs, labels]

    keep = Keep()
    _, trainer = federate(source=Doubling(), selection=RandomClients(count=2), callbacks=[keep], rounds=2)
    assert keep.cohorts == [trainer.datamodule.cohort(0), trainer.datamodule.cohort(1)]


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
        (lambda: FederatedDataModule([blobs()], partition=IID(2)), "ready-made"),
        (lambda: FederatedDataModule([]), "list of client data sets is empty"),
        (lambda: set_up([blobs(3), Pairs(0)]), "client 1 has no samples"),
        (lambda: set_up(Source([1, 2]), partition=IID(2)), "gives a list"),
        (lambda: set_up(Source(DataLoader(Endless())), partition=IID(2)), "IterableDataset"),
        (lambda: set_up(Source(DataLoader(Unlabelled())), partition=ClassesPerClient(2, 1)), "shows no label"),
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
def test_data_that_cannot_be_shared_out_is_refused(make, message):
    with pytest.raises(MisconfigurationException, match=message):
        make()
