"""Sliced loaders yield what the source's DataLoaders yield, and ranks divide the batches among themselves."""

import random
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch
from pytorch_lightning.utilities import CombinedLoader
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.evaluation import SlicedLoader, share_of, sliced, why_not_shared
from tests.toys import Net, blobs, federate

CPU = torch.device("cpu")


class Squares(Dataset):
    """A data set that is not held as tensors."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int):
        return torch.tensor(float(index)), index**2


class Noisy(Squares):
    def __getitem__(self, index: int):
        return torch.tensor(random.random()), index


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(23)


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (23, 4, 5, 3), generator=generator, dtype=torch.uint8).permute(0, 3, 1, 2)
    return TensorDataset(pictures, torch.arange(23), torch.randn(23, generator=generator, dtype=torch.float64))


def same(first, second) -> bool:
    """Return whether two batches are equal to the last bit, with the same types and memory layout."""
    assert type(first) is type(second) is list
    return len(first) == len(second) and all(
        type(a) is type(b) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


DATASETS = {
    "features": blobs(23),
    "images": images(),
    "subset": Subset(images(), [5, 2, 2, 19, 7]),
    "subset of a subset": Subset(Subset(images(), range(3, 20)), [1, 0, 9]),
    "concatenation": ConcatDataset([images(), Subset(images(), [4, 1])]),
    "empty": Subset(images(), []),
}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("settings", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": 99}])
def test_a_sliced_loader_yields_the_batches_of_the_dataloader_bit_for_bit(dataset, settings):
    loader = DataLoader(DATASETS[dataset], **settings)
    fast = sliced(loader, CPU)
    assert type(fast) is SlicedLoader
    assert len(fast) == len(loader)
    assert all(same(a, b) for a, b in zip(fast, loader, strict=True))


def test_a_sliced_loader_draws_from_the_global_generator_as_a_dataloader_does():
    loader = DataLoader(blobs(23), batch_size=4)
    draws = []
    for each in (loader, sliced(loader, CPU)):
        torch.manual_seed(0)
        iterator = iter(each)
        before = torch.rand(())
        next(iterator)
        draws.append((before, torch.rand(())))
    assert draws[0] == draws[1]


def test_a_step_that_changes_its_batch_does_not_change_the_data():
    loader = sliced(DataLoader(blobs(23), batch_size=4), CPU)
    for inputs, _ in loader:
        inputs.zero_()
    assert torch.equal(next(iter(loader))[0], blobs(23).tensors[0][:4])


def test_a_sliced_loader_keeps_the_attributes_of_the_dataloader():
    loader = DataLoader(blobs(23), batch_size=4, drop_last=True)
    loader.label = "mine"
    fast = sliced(loader, CPU)
    assert (fast.dataset, fast.batch_size, fast.drop_last, fast.label) == (loader.dataset, 4, True, "mine")


def as_is() -> dict[str, DataLoader]:
    class Own(DataLoader):
        pass

    return {
        "shuffled": DataLoader(blobs(23), shuffle=True),
        "own collation": DataLoader(blobs(23), collate_fn=list),
        "batch sampler": DataLoader(blobs(23), batch_sampler=BatchSampler(RandomSampler(range(23)), 4, False)),
        "some samples": DataLoader(blobs(23), sampler=SequentialSampler(range(5)), batch_size=4),
        "own batches": DataLoader(blobs(23), batch_sampler=[[1, 2], [3]]),
        "no batches": DataLoader(blobs(23), batch_size=None),
        "own loader": Own(blobs(23)),
        "other data": DataLoader(Squares()),
        "stream": DataLoader(Stream()),
    }


@pytest.mark.parametrize("kind", as_is())
def test_a_loader_whose_batches_are_not_slices_stays_as_it_is(kind):
    loader = as_is()[kind]
    assert sliced(loader, CPU) is loader


def test_loaders_are_sliced_inside_lists_dictionaries_and_combined_loaders():
    first, second = DataLoader(blobs(23)), DataLoader(Squares())
    assert [type(loader) for loader in sliced([first, second], CPU)] == [SlicedLoader, DataLoader]
    assert type(sliced({"a": [first]}, CPU)["a"][0]) is SlicedLoader
    combined = CombinedLoader({"a": first, "b": second}, "sequential")
    assert sliced(combined, CPU) is combined
    assert type(combined.iterables["a"]) is SlicedLoader
    assert sliced([], CPU) == []


@pytest.mark.parametrize("dataset", [blobs(23), Squares()], ids=["tensors", "other data"])
@pytest.mark.parametrize(("limit", "expected"), [(6, [[0, 3], [1, 4], [2, 5]]), (4, [[0, 3], [1], [2]])])
def test_ranks_take_whole_batches_in_turns_up_to_the_limit(dataset, limit, expected):
    loader = sliced(DataLoader(dataset, batch_size=4), CPU)
    batches = list(loader)
    for rank, numbers in enumerate(expected):
        share = share_of(loader, rank, 3, limit)
        assert len(share) == len(numbers)
        assert all(same(a, batches[number]) for a, number in zip(share, numbers, strict=True))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("shuffled", "the loader draws its batches with a RandomSampler"),
        ("batch sampler", "the loader draws its batches with a BatchSampler"),
        ("own batches", "the loader draws its batches with a list"),
        ("own loader", "the loader is a Own"),
        ("stream", "Stream is an IterableDataset"),
        ("other data", None),
        ("own collation", None),
    ],
)
def test_a_loader_whose_batches_depend_on_more_than_their_number_is_not_shared(kind, reason):
    assert why_not_shared(as_is()[kind]) == reason


def test_data_that_draws_random_numbers_is_not_shared():
    assert why_not_shared(DataLoader(Noisy())) == "Noisy draws random numbers"


def shares_memory(loader: SlicedLoader, batches: list) -> bool:
    """Return whether batches are parts of the loader's tensors."""
    start, end = loader.tensors[0].data_ptr(), loader.tensors[0].data_ptr() + loader.tensors[0].nbytes
    return all(start <= batch[0].data_ptr() < end for batch in batches)


def test_batches_are_copied_until_a_whole_evaluation_has_left_them_as_they_were():
    loader = SlicedLoader.from_loader(DataLoader(blobs(23), batch_size=5), CPU)
    next(iter(loader))  # an evaluation that ends early, such as the sanity check
    first = list(loader)
    assert not shares_memory(loader, first)
    assert shares_memory(loader, later := list(loader))
    assert all(map(same, first, later))
    assert shares_memory(loader, list(share_of(loader, 1, 2, limit=4)))


class Tells(Net):
    """Notes where the samples of each validation batch are."""

    places: ClassVar[list[int]] = []

    def validation_step(self, batch, batch_idx):
        self.places.append(batch[0].data_ptr())
        super().validation_step(batch, batch_idx)


def test_a_run_does_not_copy_validation_data_once_a_whole_validation_has_left_it_as_it_was():
    """A Trainer does not ask for a batch after the last one, so the loader sees that batch in the next validation."""
    Tells.places.clear()
    federate(Tells(), rounds=3, num_sanity_val_steps=0)
    first, second, third = np.array(Tells.places).reshape(3, -1).tolist()
    assert len(third) > 1
    assert second == third  # where the data is
    assert not set(first) & set(second)


def test_a_last_batch_that_is_changed_in_place_is_noticed_by_the_next_evaluation():
    loader = SlicedLoader.from_loader(DataLoader(blobs(23), batch_size=5), CPU)
    list(loader)
    last = list(islice(loader, 5))[-1]
    last[0].mul_(2)
    with pytest.raises(MisconfigurationError, match=r"let the step change a copy, batch.clone\(\)"):
        next(iter(loader))


def test_a_step_that_changes_its_batches_in_place_always_gets_copies():
    loader = SlicedLoader.from_loader(DataLoader(blobs(23), batch_size=5), CPU)
    for _ in range(2):
        for batch, expected in zip(loader, DataLoader(blobs(23), batch_size=5), strict=True):
            assert same(batch, expected)
            batch[0].mul_(2)


def test_a_step_that_begins_to_change_its_batches_in_place_is_refused():
    loader = SlicedLoader.from_loader(DataLoader(blobs(23), batch_size=5), CPU)
    list(loader)
    with torch.inference_mode():
        batches = iter(loader)
        next(batches)[0].mul_(2)
        with pytest.raises(MisconfigurationError, match=r"let the step change a copy, batch.clone\(\)"):
            next(batches)


def test_data_with_missing_values_is_always_copied():
    loader = SlicedLoader.from_loader(DataLoader(TensorDataset(torch.tensor([1.0, float("nan")]))), CPU)
    list(loader)
    assert not shares_memory(loader, list(loader))
