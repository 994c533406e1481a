import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from fl_lightning.data.batches import ClientBatches, TensorLoader, TrainingData
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
