import inspect

import numpy as np
import pytest

import fl_lightning.data
from fl_lightning.core.arguments import kept_arguments
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import (
    IID,
    AllClients,
    ByColumn,
    ByList,
    ClassesPerClient,
    Dirichlet,
    FavouriteClass,
    FreshDraw,
    MixedNodes,
    Partition,
    PoissonClients,
    RandomClients,
    Selection,
    SequentialClients,
    Shards,
)
from tests.data.partitions.labels import cyclic_labels


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
def test_the_same_seed_gives_the_same_partition_and_another_seed_gives_another(partition):
    labels = cyclic_labels(10, 500)
    first, again, other = (partition.assign(labels, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


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
def test_two_hundred_thousand_samples_are_divided_among_twenty_thousand_clients(name):
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
def test_the_representation_shows_the_arguments_that_differ_from_their_defaults(partition, shown):
    assert repr(partition) == shown


PARTITIONS_AND_SELECTIONS = [
    AllClients(),
    ByColumn("user", min_samples=2),
    ByList([[0], [1, 2]]),
    ClassesPerClient(7, classes=2, sizes="power_law", exponent=2.0, min_samples=3),
    Dirichlet(7, alpha=0.5, min_samples=2),
    FavouriteClass(7, eta=0.4, shards_per_class=5),
    FreshDraw(7, low=2, high=3),
    IID(7, sizes="power_law", exponent=2.0, min_samples=3),
    MixedNodes([1, "iid"], samples_per_node=5, sizes="power_law", exponent=2.0, min_samples=2),
    RandomClients(count=3),
    SequentialClients(fraction=0.5),
    PoissonClients(rate=0.5),
    Shards(7, shards_per_client=3),
]


@pytest.mark.parametrize("instance", PARTITIONS_AND_SELECTIONS, ids=lambda instance: type(instance).__name__)
def test_every_constructor_argument_is_kept_under_its_name(instance):
    parameters = inspect.signature(type(instance)).parameters
    assert list(kept_arguments(instance)) == list(parameters)


def test_every_public_partition_and_selection_is_checked_for_its_arguments():
    public = {getattr(fl_lightning.data, name) for name in fl_lightning.data.__all__}
    made = {cls for cls in public if issubclass(cls, Partition | Selection) and not inspect.isabstract(cls)}
    assert made == {type(instance) for instance in PARTITIONS_AND_SELECTIONS}


def test_long_arguments_are_shortened_in_the_representation():
    assert repr(ByList([[0, 1], [2]] * 50)) == f"ByList(lists=[{', '.join(['[...]'] * 12)}, ...])"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IID(0), "num_clients=0"),
        (lambda: IID(5, min_samples=0), "min_samples=0"),
        (lambda: IID(101).assign(cyclic_labels(10, 100), 0), "num_clients=101, but the data set has 100 samples"),
        (
            lambda: IID(5, min_samples=21).assign(cyclic_labels(10, 100), 0),
            "min_samples=21, but there are only 20 samples for each of 5 clients",
        ),
    ],
)
def test_too_few_clients_or_samples_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
