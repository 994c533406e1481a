from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.labels import labels_of
from tests.data.datasets import Pairs

CLASSES = [2, 0, 1, 2, 0, 1]
INPUT = torch.zeros(3)


class Samples(Dataset):
    """Makes each sample from its index and its class."""

    def __init__(self, make, count: int = 6) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.make(index, CLASSES[index])


@dataclass
class Record:
    image: Any
    target: int
    weight: float = 1.0


class Graph:
    """Keeps its fields in a store, as PyTorch Geometric's ``Data`` does, with a label of shape [1]."""

    def __init__(self, **fields) -> None:
        self._store = fields

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._store.get(name)


Row = namedtuple("Row", ["index", "image", "label"])


def test_labels_are_found_wherever_data_sets_keep_them():
    with_targets = Pairs(4)
    with_targets.targets = [2, 1, 0, 1]
    assert labels_of(with_targets).values.tolist() == [2, 1, 0, 1]
    assert labels_of(Subset(with_targets, [3, 0])).values.tolist() == [1, 2]
    assert labels_of(Pairs(5)).values.tolist() == [0, 1, 2, 0, 1]
    assert labels_of(ConcatDataset([Pairs(2), with_targets])).values.tolist() == [0, 1, 2, 1, 0, 1]


@pytest.mark.parametrize(
    ("make", "origin"),
    [
        (lambda i, y: {"image": INPUT, "label": y}, "sample['label']"),
        (lambda i, y: {"input_ids": INPUT, "labels": torch.tensor(y)}, "sample['labels']"),
        (lambda i, y: {"x": INPUT, "y": np.int64(y)}, "sample['y']"),
        (lambda i, y: {"index": i, "target": y}, "sample['target']"),
        (lambda i, y: Record(INPUT, y), "sample.target"),
        (lambda i, y: Graph(x=INPUT, y=torch.tensor([y])), "sample.y"),
        (lambda i, y: Row(i, INPUT, y), "sample.label"),
        (lambda i, y: (INPUT, y), "sample[1]"),
        (lambda i, y: ({"image": INPUT}, y), "sample[1]"),
        (lambda i, y: (INPUT, y, i), "sample[1]"),
        (lambda i, y: (i, INPUT, torch.tensor(y)), "sample[2]"),
        (lambda i, y: [INPUT, INPUT, y], "sample[2]"),
    ],
)
def test_a_samples_label_is_found_by_its_name_or_position(make, origin):
    labels = labels_of(Samples(make))
    assert labels.values.tolist() == CLASSES
    assert labels.origin == origin


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (lambda i, y: {"label": i, "digit": y}, "digit"),
        (lambda i, y: Record(INPUT, i, weight=y), "weight"),
        (lambda i, y: Graph(x=INPUT, y=torch.tensor([i]), kind=torch.tensor([y])), "kind"),
        (lambda i, y: (y, INPUT), 0),
        (lambda i, y: (INPUT, i % 2, y), -1),
        (lambda i, y: (INPUT, i, {"class": y}), lambda sample: sample[2]["class"]),
    ],
)
def test_the_user_can_say_where_the_label_is(make, label):
    assert labels_of(Samples(make), label=label).values.tolist() == CLASSES


def test_a_position_in_a_tensor_data_set_needs_no_samples():
    tensors = TensorDataset(torch.zeros(6, 3), torch.tensor(CLASSES), torch.arange(6))
    assert labels_of(tensors, load_samples=False).values.tolist() == CLASSES
    assert labels_of(tensors, load_samples=False, label=2).values.tolist() == list(range(6))


def test_an_attribute_with_another_length_is_not_taken_for_the_labels():
    dataset = Samples(lambda i, y: (INPUT, y))
    dataset.labels = ["cat", "dog", "bird"]
    assert labels_of(dataset).values.tolist() == CLASSES


def test_an_index_that_starts_anew_in_every_data_set_is_not_taken_for_the_label():
    parts = [Samples(lambda i, y: (INPUT, y, i), count) for count in (6, 1, 4, 0)]
    assert labels_of(ConcatDataset(parts)).values.tolist() == [*CLASSES, CLASSES[0], *CLASSES[:4]]
    assert labels_of(Subset(parts[0], [4, 4, 1])).values.tolist() == [0, 0, 0]


def test_the_labels_are_described_in_one_line():
    many = TensorDataset(torch.zeros(60_000), torch.arange(60_000) % 10)
    assert str(labels_of(many)) == "Labels: 10 classes, 60,000 samples, from sample[1]"


@pytest.mark.parametrize(
    ("make", "label", "message"),
    [
        (lambda i, y: (INPUT, y, i % 2), None, r"any of sample\[1\], sample\[2\]: set data.label to its position"),
        (lambda i, y: (INPUT, i, i + 7), None, r"any of sample\[1\], sample\[2\]"),
        (lambda i, y: (INPUT, INPUT, INPUT), None, "a tuple of 3, has no label"),
        (lambda i, y: {"image": INPUT, "digit": y}, None, "a dict of image, digit, has no label"),
        (lambda i, y: INPUT, None, "a Tensor, has no label"),
        (lambda i, y: {"image": INPUT, "digit": y}, "class", "label=class, but a sample is a dict of image, digit"),
        (lambda i, y: (INPUT, y), 2, "label=2, but a sample is a tuple of 2"),
        (lambda i, y: (INPUT, y), "digit", "label=digit, but a sample is a tuple of 2"),
        (lambda i, y: (INPUT, "cat"), None, r"from sample\[1\], are not classes: set data.label"),
        (lambda i, y: {"label": torch.zeros(y + 1)}, None, r"from sample\['label'\], are not classes"),
    ],
)
def test_labels_that_cannot_be_told_are_refused(make, label, message):
    with pytest.raises(MisconfigurationError, match=message):
        labels_of(Samples(make), label=label)
