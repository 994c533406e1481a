import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data import (
    IID,
    ByColumn,
    ClassesPerClient,
    Dirichlet,
    FavouriteClass,
    FreshDraw,
    MixedNodes,
    Shards,
)
from fl_lightning.data.partition import deal

SIZES = st.sampled_from(["balanced", "power_law"])


def labels_of_mnist_size(classes: int = 10, samples: int = 60_000) -> np.ndarray:
    return np.arange(samples) % classes


@given(clients=st.integers(1, 40), samples=st.integers(40, 400), sizes=SIZES, seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_iid_assigns_every_sample_once_and_leaves_no_client_empty(clients, samples, sizes, seed):
    parts = IID(clients, sizes=sizes).assign(labels_of_mnist_size(4, samples), seed)
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert sorted(np.concatenate(parts)) == list(range(samples))


@pytest.mark.filterwarnings("ignore:.*belongs to no client")
@given(clients=st.integers(1, 40), classes=st.integers(1, 6), sizes=SIZES, seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_classes_per_client_keeps_the_limit_and_assigns_nothing_twice(clients, classes, sizes, seed):
    labels = np.random.default_rng(seed).permutation(labels_of_mnist_size(6, 600))
    parts = ClassesPerClient(clients, classes, sizes=sizes).assign(labels, seed)
    assert all(len(np.unique(labels[part])) == classes for part in parts)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    if clients * classes >= 6 + classes:  # enough hands for every class to be dealt
        assert len(everything) == 600


@given(clients=st.integers(1, 20), alpha=st.floats(0.3, 100.0), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_dirichlet_assigns_every_sample_once_and_leaves_no_client_empty(clients, alpha, seed):
    parts = Dirichlet(clients, alpha).assign(labels_of_mnist_size(10, 1000), seed)
    assert min(map(len, parts)) > 0
    assert sorted(np.concatenate(parts)) == list(range(1000))


@pytest.mark.parametrize("alpha", [1e9, float("inf")])
def test_dirichlet_with_a_large_alpha_gives_equal_parts_of_each_class(alpha):
    labels = labels_of_mnist_size(10, 1000)
    for part in Dirichlet(10, alpha).assign(labels, seed=1):
        assert np.abs(np.bincount(labels[part], minlength=10) - 10).max() <= 1


def test_dirichlet_with_a_small_alpha_gives_a_class_to_few():
    labels = labels_of_mnist_size(10, 1000)
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in Dirichlet(5, 0.05).assign(labels, seed=1)])
    assert (counts.max(axis=0) / counts.sum(axis=0)).mean() > 0.7


@pytest.mark.parametrize(
    "partition",
    [
        Dirichlet(7, 0.5),
        IID(7),
        ClassesPerClient(7, 2),
        ClassesPerClient(7, 2, sizes="power_law"),
        MixedNodes([1, 2, "iid"], 20),
        Shards(7),
        FavouriteClass(7, 0.5, shards_per_class=20),
        FreshDraw(7, 1, 10),
    ],
    ids=repr,
)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(partition):
    labels = labels_of_mnist_size(10, 500)
    first, again, other = (partition.assign(labels, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_power_law_sizes_are_those_of_the_specification():
    sizes = [len(part) for part in IID(100, sizes="power_law").assign(labels_of_mnist_size(), seed=0)]
    assert (sizes[0], sizes[-1], sum(sizes)) == (11_567, 116, 60_000)
    assert sum(sizes[:10]) / 60_000 == pytest.approx(0.56, abs=0.01)


def test_two_classes_with_a_power_law_have_twenty_holders_each():
    labels = labels_of_mnist_size()
    parts = ClassesPerClient(100, 2, sizes="power_law").assign(labels, seed=0)
    holders = np.zeros(10, dtype=int)
    for part in parts:
        holders[np.unique(labels[part])] += 1
    assert (holders == 20).all()
    sizes = np.array([len(part) for part in parts])
    assert sizes.sum() == 60_000
    # client 0's share of a class depends on how large the other holders of that class are
    assert 5_000 < sizes.max() < 8_500
    assert 40 < sizes.min() < 120


def test_balanced_classes_are_split_evenly_among_their_holders():
    labels = labels_of_mnist_size()
    sizes = [len(part) for part in ClassesPerClient(100, 2).assign(labels, seed=0)]
    assert sizes == [600] * 100


@given(players=st.integers(1, 30), cards=st.integers(1, 7), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_dealing_gives_distinct_classes_and_equal_shares(players, cards, seed):
    hands = deal(np.arange(7), players, cards, np.random.default_rng(seed))
    assert all(len(set(hand)) == cards for hand in hands)
    counts = np.bincount(np.concatenate(hands), minlength=7)
    assert counts.max() - counts.min() <= 2


@given(clients=st.integers(1, 20), classes=st.integers(1, 4), minimum=st.integers(1, 10), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_client_has_at_least_min_samples(clients, classes, minimum, seed):
    labels = labels_of_mnist_size(4, 1600)
    for partition in (
        IID(clients, sizes="power_law", exponent=2.0, min_samples=minimum),
        ClassesPerClient(clients, classes, sizes="power_law", exponent=2.0, min_samples=minimum),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes that few clients were not dealt
            parts = partition.assign(labels, seed)
        assert min(map(len, parts)) >= minimum


def test_dirichlet_draws_until_every_client_has_min_samples():
    labels = labels_of_mnist_size(10, 1000)
    assert min(map(len, Dirichlet(10, 0.5, min_samples=40).assign(labels, seed=0))) >= 40


MANY = 20_000
EACH = 10
LARGE = {
    "iid": IID(MANY),
    "iid, power law": IID(MANY, sizes="power_law", min_samples=2),
    "classes": ClassesPerClient(MANY, 2),
    "classes, power law": ClassesPerClient(MANY, 2, sizes="power_law"),
    "dirichlet": Dirichlet(MANY, 10.0),
    "nodes": MixedNodes([1, 2, "iid", "1-5"] * (MANY // 4), EACH),
    "shards": Shards(MANY),
    "favourite": FavouriteClass(MANY, 0.5, shards_per_class=MANY // 5),
    "redrawn": FreshDraw(MANY, 1, 10),
    "column": ByColumn("group"),
}


@pytest.mark.parametrize("name", LARGE)
def test_twenty_thousand_clients_share_out_two_hundred_thousand_samples(name):
    values = np.arange(MANY * EACH) % (MANY if name == "column" else 10)
    parts = LARGE[name].assign(values, seed=0)
    assert len(parts) == MANY
    if name not in ("nodes", "redrawn"):
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(MANY * EACH))


@pytest.mark.parametrize(
    ("partition", "shown"),
    [
        (IID(7), "IID(num_clients=7)"),
        (IID(7, sizes="power_law", exponent=2.0), "IID(num_clients=7, sizes='power_law', exponent=2.0)"),
        (MixedNodes([1, "iid"], 5), "MixedNodes(classes=[1, 'iid'], samples_per_node=5)"),
        (FreshDraw(3, low=1, high=5), "FreshDraw(num_clients=3, low=1, high=5)"),
    ],
)
def test_a_partition_shows_its_arguments(partition, shown):
    assert repr(partition) == shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ClassesPerClient(5, 12).assign(labels_of_mnist_size(10, 100), 0),
            "classes=12, but the data set has 10",
        ),
        (lambda: ClassesPerClient(5, 0), "classes=0"),
        (lambda: IID(0), "num_clients=0"),
        (lambda: Dirichlet(5, 0.0), "alpha=0.0"),
        (lambda: Dirichlet(5, 1.0, min_samples=0), "min_samples=0"),
        (lambda: Dirichlet(40, 0.01).assign(labels_of_mnist_size(2, 60), 0), "set alpha higher"),
        (
            lambda: IID(101).assign(labels_of_mnist_size(10, 100), 0),
            "num_clients=101, but the data set has 100 samples",
        ),
        (lambda: ClassesPerClient(90, 2).assign(labels_of_mnist_size(10, 100), 0), "10 samples for 18 clients"),
        (lambda: IID(5, min_samples=0), "min_samples=0"),
        (
            lambda: IID(5, min_samples=21).assign(labels_of_mnist_size(10, 100), 0),
            "min_samples=21, but 100 samples are 20 for each of 5 clients",
        ),
        (
            lambda: ClassesPerClient(6, 1, min_samples=12).assign(labels_of_mnist_size(4, 80), 0),
            "class 0 has 20 samples for 2 clients, so some would have fewer than min_samples=12",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(make, message):
    with pytest.raises(MisconfigurationException, match=message):
        make()


def test_a_class_that_nobody_was_dealt_is_warned_about():
    with pytest.warns(UserWarning, match="belongs to no client"):
        ClassesPerClient(2, 1).assign(labels_of_mnist_size(4, 40), 0)
