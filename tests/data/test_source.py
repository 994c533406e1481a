import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fl_lightning.data import Digits
from fl_lightning.data.source import stratified_split


def set_up(source):
    source.prepare_data()
    source.setup("fit")
    return source


def rows(dataset) -> set[bytes]:
    return {image.numpy().tobytes() for image in dataset.tensors[0]}


@pytest.fixture(scope="module")
def digits():
    return set_up(Digits())


def test_the_digits_are_normalised_by_their_training_part(digits):
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    mean, std = train_x.mean(), train_x.std(ddof=1)
    for dataset, x, y in ((digits.parts.train, train_x, train_y), (digits.parts.test, test_x, test_y)):
        expected = ((x - mean) / std).astype(np.float32).reshape(-1, 1, 8, 8)
        np.testing.assert_allclose(dataset.tensors[0].numpy(), expected, rtol=1e-6)
        assert dataset.tensors[1].tolist() == y.tolist()


def test_without_a_hold_out_the_test_set_is_watched(digits):
    assert digits.parts.validation is None
    assert digits.val_dataloader().dataset is digits.test_dataloader().dataset


def test_the_hold_out_is_no_part_of_the_training_data_and_the_test_set_stays(digits):
    held_out = set_up(Digits(validation_fraction=0.1))
    train, validation, test = held_out.parts
    assert (len(train), len(validation)) == (1293, 144)
    assert all(map(torch.equal, test.tensors, digits.parts.test.tensors))
    together = torch.cat([train.tensors[0], validation.tensors[0]])
    assert sorted(image.sum().item() for image in together) == sorted(
        image.sum().item() for image in digits.parts.train.tensors[0]
    )
    assert held_out.val_dataloader().dataset is validation
    assert held_out.test_dataloader().dataset is test
    assert not rows(train) & rows(validation)


def test_a_share_of_the_training_part_can_be_used_alone():
    train, validation, test = set_up(Digits(train_fraction=0.8, validation_fraction=0.25)).parts
    assert len(train) + len(validation) == round(0.8 * 1437)
    assert len(validation) == round(0.25 * len(train) + 0.25 * len(validation))
    assert len(test) == 360


def test_the_data_is_loaded_once():
    source = set_up(Digits())
    loaded = source.parts
    source.setup("test")
    assert source.parts is loaded


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(4, 60), min_size=2, max_size=5),
    fraction=st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 0.8]),
)
def test_a_split_is_complete_disjoint_reproducible_and_in_proportion(counts, fraction):
    labels = np.repeat(np.arange(len(counts)), counts)
    if not len(counts) <= round(fraction * len(labels)) <= len(labels) - len(counts):
        return  # a class would be missing in one part
    part, rest = stratified_split(np.arange(len(labels)), labels, fraction, "share")
    assert len(part) == round(fraction * len(labels))
    assert sorted([*part, *rest]) == list(range(len(labels)))
    again, _ = stratified_split(np.arange(len(labels)), labels, fraction, "share")
    assert part.tolist() == again.tolist()
    got = np.bincount(labels[part], minlength=len(counts))
    assert np.abs(got - fraction * np.array(counts)).max() < 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Digits(batch_size=0), "batch_size=0"),
        (lambda: Digits(train_fraction=0.0), r"train_fraction=0.0.*\(0, 1\]"),
        (lambda: Digits(validation_fraction=1.0), r"validation_fraction=1.0.*\[0, 1\)"),
        (lambda: set_up(Digits(validation_fraction=0.001)), "validation_fraction=0.001 is 1 of 1437 samples"),
        (lambda: Digits().train_dataloader(), "not set up"),
    ],
)
def test_what_cannot_be_split_is_refused(make, message):
    with pytest.raises(MisconfigurationException, match=message):
        make()
