import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient
from fl_lightning.data.partitions.classes import deal
from tests.data.partitions.labels import cyclic_labels

#: samples per class in MNIST's training set
MNIST_CLASSES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
SIZES = st.sampled_from(["balanced", "power_law"])


@pytest.mark.filterwarnings("ignore:.*belongs to no client")
@given(clients=st.integers(1, 40), classes=st.integers(1, 6), sizes=SIZES, seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_every_client_has_the_given_number_of_classes_and_no_sample_has_two_owners(clients, classes, sizes, seed):
    labels = np.random.default_rng(seed).permutation(cyclic_labels(6, 600))
    parts = ClassesPerClient(clients, classes, sizes=sizes).assign(labels, seed)
    assert all(len(np.unique(labels[part])) == classes for part in parts)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    if clients * classes >= 6 + classes:  # enough clients for every class to be dealt
        assert len(everything) == 600


def test_with_two_classes_per_client_and_a_power_law_every_class_has_twenty_owners():
    labels = cyclic_labels()
    parts = ClassesPerClient(100, 2, sizes="power_law").assign(labels, seed=0)
    owners = np.zeros(10, dtype=int)
    for part in parts:
        owners[np.unique(labels[part])] += 1
    assert (owners == 20).all()
    sizes = np.array([len(part) for part in parts])
    assert sizes.sum() == 60_000
    # client 0's share of a class depends on the sizes of the other owners of that class
    assert 5_000 < sizes.max() < 8_500
    assert 40 < sizes.min() < 120


def test_balanced_classes_are_divided_evenly_among_their_owners():
    labels = cyclic_labels()
    for part in ClassesPerClient(100, 2).assign(labels, seed=0):
        assert sorted(np.bincount(labels[part], minlength=10))[-2:] == [300, 300]


@pytest.mark.parametrize("seed", range(5))
def test_balanced_clients_of_mnist_have_600_samples_each_although_its_classes_differ_in_size(seed):
    labels = np.repeat(np.arange(10), MNIST_CLASSES)
    parts = ClassesPerClient(100, 2).assign(labels, seed)
    assert [len(part) for part in parts] == [600] * 100
    assert len(np.unique(np.concatenate(parts))) == 60_000
    # an even division of the smallest class gives 271; evening out must not leave a client with almost one class only
    assert min(np.bincount(labels[part])[np.unique(labels[part])].min() for part in parts) > 150


@pytest.mark.filterwarnings("ignore:.*belongs to no client")
@given(
    clients=st.integers(1, 12),
    classes=st.integers(1, 4),
    minimum=st.integers(1, 8),
    counts=st.lists(st.integers(100, 400), min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None)
def test_evening_out_keeps_every_class_and_makes_the_sizes_no_less_equal(clients, classes, minimum, counts, seed):
    labels = np.repeat(np.arange(4), counts)
    even, steep = (
        ClassesPerClient(clients, classes, sizes=sizes, exponent=1e-9, min_samples=minimum).assign(labels, seed)
        for sizes in ("balanced", "power_law")  # so small an exponent divides each class evenly
    )
    spread = [np.ptp([len(part) for part in parts]) for parts in (even, steep)]
    assert spread[0] <= max(spread[1], 1)
    for one, other in zip(even, steep, strict=True):
        assert set(labels[one]) == set(labels[other])
        assert np.bincount(labels[one])[np.unique(labels[one])].min() >= -(-minimum // classes)
    assert np.array_equal(np.sort(np.concatenate(even)), np.sort(np.concatenate(steep)))


def test_sizes_that_the_dealt_classes_do_not_allow_to_be_equal_are_left_as_equal_as_possible():
    labels = np.repeat([0, 1], [300, 20])
    sizes = sorted(len(part) for part in ClassesPerClient(4, 1).assign(labels, seed=0))
    assert sizes == [10, 10, 150, 150]


def test_a_power_law_is_not_evened_out():
    labels = np.repeat(np.arange(2), [600, 300])
    # both clients own both classes, which they divide 2 : 1
    assert [len(part) for part in ClassesPerClient(2, 2, sizes="power_law").assign(labels, seed=0)] == [600, 300]


@given(players=st.integers(1, 30), cards=st.integers(1, 7), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_dealt_classes_are_distinct_and_dealt_equally_often(players, cards, seed):
    hands = deal(np.arange(7), players, cards, np.random.default_rng(seed))
    assert all(len(set(hand)) == cards for hand in hands)
    counts = np.bincount(np.concatenate(hands), minlength=7)
    assert counts.max() - counts.min() <= 2


@given(clients=st.integers(1, 20), classes=st.integers(1, 4), minimum=st.integers(1, 10), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_client_has_at_least_min_samples(clients, classes, minimum, seed):
    partition = ClassesPerClient(clients, classes, sizes="power_law", exponent=2.0, min_samples=minimum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few clients may leave some classes without an owner
        parts = partition.assign(cyclic_labels(4, 1600), seed)
    assert min(map(len, parts)) >= minimum


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassesPerClient(5, 0), "classes=0"),
        (lambda: ClassesPerClient(5, 12).assign(cyclic_labels(10, 100), 0), "classes=12, but the data set has 10"),
        (lambda: ClassesPerClient(90, 2).assign(cyclic_labels(10, 100), 0), "10 samples for 18 clients"),
        (
            lambda: ClassesPerClient(6, 1, min_samples=12).assign(cyclic_labels(4, 80), 0),
            "class 0 has 20 samples for 2 clients, so some would have fewer than min_samples=12",
        ),
    ],
)
def test_classes_that_cannot_be_divided_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_a_class_without_an_owner_causes_a_warning():
    with pytest.warns(UserWarning, match="belongs to no client"):
        ClassesPerClient(2, 1).assign(cyclic_labels(4, 40), 0)
