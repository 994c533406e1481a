import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import Digits
from fl_lightning.data.sources.base import stratified_split
from tests.data.files import set_up


def rows(dataset) -> set[bytes]:
    return {image.numpy().tobytes() for image in dataset.tensors[0]}


@pytest.fixture(scope="module")
def digits():
    return set_up(Digits())


def test_without_a_validation_part_models_are_validated_on_the_test_set(digits):
    assert digits.parts.validation is None
    assert digits.val_dataloader().dataset is digits.test_dataloader().dataset


def test_the_validation_part_is_held_out_of_the_training_part_and_the_test_set_stays(digits):
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


def test_a_fraction_of_the_training_part_can_be_used():
    train, validation, test = set_up(Digits(train_fraction=0.8, validation_fraction=0.25)).parts
    assert len(train) + len(validation) == round(0.8 * 1437)
    assert len(validation) == round(0.25 * len(train) + 0.25 * len(validation))
    assert len(test) == 360


def test_evaluation_has_a_batch_size_of_its_own():
    source = set_up(Digits(batch_size=8, evaluation_batch_size=100))
    assert [len(labels) for _, labels in source.val_dataloader()] == [100, 100, 100, 60]
    for loader in (source.test_dataloader(), source.predict_dataloader()):
        assert loader.batch_size == 100
    assert source.train_dataloader().batch_size == 8


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
def test_a_split_is_complete_disjoint_reproducible_and_stratified(counts, fraction):
    labels = np.repeat(np.arange(len(counts)), counts)
    if not len(counts) <= round(fraction * len(labels)) <= len(labels) - len(counts):
        return  # a class would be missing from one part
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
        (lambda: Digits(batch_size=0), "^batch_size=0"),
        (lambda: Digits(evaluation_batch_size=0), "^evaluation_batch_size=0"),
        (lambda: Digits(train_fraction=0.0), r"train_fraction=0.0.*\(0, 1\]"),
        (lambda: Digits(validation_fraction=1.0), r"validation_fraction=1.0.*\[0, 1\)"),
        (lambda: set_up(Digits(validation_fraction=0.001)), "validation_fraction=0.001 is 1 of 1437 samples"),
        (lambda: Digits().train_dataloader(), "not set up"),
    ],
)
def test_impossible_splits_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
