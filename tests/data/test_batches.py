import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    get_worker_info,
)

from fl_lightning.data.batches import ClientBatches, TensorLoader
from fl_lightning.data.training_data import TrainingData
from tests.toys import blobs


def test_batches_cover_the_clients_samples_once_per_epoch_and_are_reshuffled():
    batches = ClientBatches(np.arange(100, 117), batch_size=5, key=(0, 0, 0))
    first = list(batches)
    batches.set_epoch(1)
    second = list(batches)
    assert [len(batch) for batch in first] == [5, 5, 5, 2] == [len(batch) for batch in second]
    for epoch in (first, second):
        assert sorted(sample for batch in epoch for sample in batch) == list(range(100, 117))
    assert first != second


@pytest.mark.parametrize(("samples", "expected"), [(11, [5, 6]), (12, [5, 5, 2]), (10, [5, 5]), (1, [1])])
def test_a_last_batch_of_one_sample_is_merged_into_the_previous_one_on_request(samples, expected):
    batches = ClientBatches(np.arange(samples), batch_size=5, key=(0, 0, 0), merge_single=True)
    assert [len(batch) for batch in batches] == expected
    assert len(batches) == len(expected)


def test_the_order_depends_on_seed_round_and_client():
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
def test_tensors_inside_subsets_and_concatenations_are_found(dataset):
    tensors = TrainingData.from_loader(DataLoader(dataset)).tensors
    expected = [dataset[i] for i in range(len(dataset))]
    assert torch.equal(tensors[0], torch.stack([x for x, _ in expected]))
    assert torch.equal(tensors[1], torch.stack([y for _, y in expected]))


@pytest.mark.parametrize(("samples", "expected"), [(11, [5, 5]), (10, [5, 5]), (5, [5]), (3, [3]), (1, [1])])
def test_a_partial_batch_is_dropped_on_request_unless_the_client_has_no_other(samples, expected):
    for merge_single in (False, True):
        batches = ClientBatches(np.arange(samples), 5, (0, 0, 0), merge_single=merge_single, drop_last=True)
        assert [len(batch) for batch in batches] == expected
        assert len(batches) == len(expected)


def test_dropped_samples_change_from_epoch_to_epoch():
    batches = ClientBatches(np.arange(12), 5, (0, 0, 0), drop_last=True)
    first = {sample for batch in batches for sample in batch}
    batches.set_epoch(1)
    assert first != {sample for batch in batches for sample in batch}


def test_without_shuffling_samples_stay_in_the_order_of_the_data_set():
    batches = ClientBatches(np.array([7, 3, 9, 1, 4]), 2, (0, 0, 0), shuffle=False)
    for epoch in range(2):
        batches.set_epoch(epoch)
        assert list(batches) == [[1, 3], [4, 7], [9]]


@pytest.mark.parametrize(
    ("settings", "shuffle", "drop_last"),
    [
        ({}, False, False),
        ({"shuffle": True}, True, False),
        ({"drop_last": True}, False, True),
        ({"sampler": RandomSampler(range(30)), "drop_last": True}, True, True),
        ({"sampler": DistributedSampler(range(30), num_replicas=2, rank=0)}, True, False),
        ({"sampler": DistributedSampler(range(30), num_replicas=2, rank=0, shuffle=False)}, False, False),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(30)), 4, drop_last=True)}, False, True),
        ({"batch_sampler": BatchSampler(RandomSampler(range(30)), 4, drop_last=False)}, True, False),
        ({"batch_sampler": [[1, 2], [3]]}, True, False),
    ],
)
def test_shuffling_and_dropping_are_those_of_the_sources_loader(settings, shuffle, drop_last):
    data = TrainingData.from_loader(DataLoader(blobs(30), **settings))
    assert (data.shuffle, data.drop_last) == (shuffle, drop_last)
    moved = data.to(torch.device("meta"))
    assert moved is not data
    assert (moved.shuffle, moved.drop_last) == (shuffle, drop_last)


class Augmented(Dataset):
    """A sample is its index, the process that loads it and three random numbers."""

    opened = False

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int):
        noise = torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()])
        return index, os.getpid(), self.opened, noise


def open_files(worker: int) -> None:
    get_worker_info().dataset.opened = True


class Federation:
    """Loads the batches of clients with 11 samples each, with some number of workers."""

    def __init__(self, num_workers: int) -> None:
        loader = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=num_workers, worker_init_fn=open_files)
        self.data = TrainingData.from_loader(loader)

    def loader(self, client: int, round_: int, epoch: int = 0):
        torch.manual_seed(100 * round_ + client)
        loader = self.data.loader(ClientBatches(np.arange(10 * client, 10 * client + 11), 4, (0, round_, client)))
        loader.batch_sampler.set_epoch(epoch)
        return loader


@pytest.fixture
def federation():
    """Return a function that makes a federation, and stop its workers at the end."""
    made = []

    def make(num_workers: int) -> Federation:
        made.append(Federation(num_workers))
        return made[-1]

    yield make
    for each in made:
        each.data.stop_workers()


def test_workers_live_as_long_as_the_run(federation):
    clients = federation(num_workers=2)
    processes = [
        {process for _, batch, _, _ in clients.loader(client, round_) for process in batch.tolist()}
        for round_ in range(2)
        for client in range(3)
    ]
    assert len(processes[0]) == 2
    assert all(each == processes[0] for each in processes)
    assert os.getpid() not in processes[0]
    clients.data.stop_workers()
    for process in processes[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_workers_load_the_batches_that_a_loader_without_workers_loads(federation):
    with_workers, without = federation(num_workers=2), federation(num_workers=0)
    for client, round_, epoch in [(0, 0, 0), (2, 0, 0), (2, 0, 1), (1, 1, 0)]:
        loaders = [each.loader(client, round_, epoch) for each in (with_workers, without)]
        first, second = [[batch[0].tolist() for batch in loader] for loader in loaders]
        assert first == second
        assert [len(loader) for loader in loaders] == [3, 3]


def test_random_transforms_depend_on_the_batch_and_not_on_the_worker(federation):
    def noise(loader) -> list:
        return torch.cat([batch[3] for batch in loader])

    one, two = federation(num_workers=1), federation(num_workers=2)
    next(iter(two.loader(0, 0)))  # a client that stops early
    expected = noise(two.loader(1, 3))
    assert torch.equal(noise(one.loader(1, 3)), expected)
    assert len(expected.unique()) == expected.numel()
    assert not torch.equal(noise(one.loader(1, 4)), expected)


def test_clients_draw_the_same_numbers_with_and_without_workers(federation):
    def drawn(num_workers: int) -> list[float]:
        clients, numbers = federation(num_workers), []
        for client in (0, 1):
            iter(clients.loader(client, 0))
            numbers.append(torch.rand(()).item())
        return numbers

    assert drawn(0) == drawn(1)


def test_the_users_worker_function_finds_the_users_data_set(federation):
    assert all(opened.all() for _, _, opened, _ in federation(num_workers=1).loader(0, 0))


def test_two_clients_cannot_use_the_workers_at_once(federation):
    clients = federation(num_workers=1)
    first = iter(clients.loader(0, 0))
    next(first)
    iter(clients.loader(1, 0))
    with pytest.raises(RuntimeError, match="no longer load the batches of client 0"):
        next(first)
