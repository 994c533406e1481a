import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FavouriteClass, Shards
from fl_lightning.data.partitions.shards import favourite_shares


@given(clients=st.integers(1, 30), shards=st.integers(1, 4), samples=st.integers(120, 500), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_sample_has_one_owner_and_sizes_differ_by_at_most_one_sample_per_shard(clients, shards, samples, seed):
    labels = np.random.default_rng(seed).integers(0, 5, samples)
    parts = Shards(clients, shards).assign(labels, seed)
    assert sorted(np.concatenate(parts)) == list(range(samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards


@given(clients=st.integers(1, 30), shards=st.integers(1, 3), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_a_shard_holds_at_most_two_classes(clients, shards, seed):
    labels = np.random.default_rng(seed).permutation(np.arange(600) % 6)  # a shard has 100 samples or fewer
    for part in Shards(max(clients, 6), shards).assign(labels, seed):
        assert len(np.unique(labels[part])) <= 2 * shards


def test_mcmahans_partition_gives_two_shards_of_one_class_each():
    labels = np.arange(60_000) % 10
    parts = Shards(100, 2).assign(labels, seed=1)
    for part in parts:
        assert sorted(np.bincount(labels[part], minlength=10))[-2:] in ([300, 300], [0, 600])


@given(clients=st.integers(1, 25), classes=st.integers(1, 6), eta=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_favourites_give_every_sample_one_owner_and_every_client_the_same_number_of_shards(clients, classes, eta, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 75))
    parts = FavouriteClass(clients, eta, shards_per_class=25).assign(labels, seed)  # a shard has three samples
    assert sorted(np.concatenate(parts)) == list(range(75 * classes))
    shards = np.array([len(part) / 3 for part in parts])
    assert set(shards) <= {classes * 25 // clients, -(-classes * 25 // clients)}
    assert all((np.bincount(labels[part], minlength=classes) % 3 == 0).all() for part in parts)


def test_an_eta_of_one_gives_client_k_class_k_mod_c():
    labels = np.arange(1000) % 5
    for client, part in enumerate(FavouriteClass(10, 1.0, shards_per_class=200).assign(labels, seed=3)):
        assert set(labels[part]) == {client % 5}


@given(
    clients=st.integers(1, 8),
    classes=st.integers(2, 6),
    eta=st.floats(0, 1),
    seed=st.integers(0, 10**6),
    shift=st.sampled_from([0.0, -1.5, -9.0]),
)
@settings(deadline=None, max_examples=50)
def test_the_probabilities_match_the_specification(clients, classes, eta, seed, shift):
    # a shift of -9 makes all weights zero
    normal = np.random.default_rng(seed).normal(0.5, 1.0, (clients, classes)) + shift
    shares = favourite_shares(normal.copy(), eta)
    for k in range(clients):
        weights = [0.0 if c == k % classes else max(0.0, normal[k, c]) for c in range(classes)]
        if sum(weights) == 0:
            weights = [0.0 if c == k % classes else 1.0 for c in range(classes)]
        for c in range(classes):
            expected = eta if c == k % classes else (1 - eta) * weights[c] / sum(weights)
            assert shares[k, c] == pytest.approx(expected, abs=1e-12)


def test_two_classes_with_an_eta_of_one_half_are_iid():
    shares = favourite_shares(np.random.default_rng(0).normal(0.5, 1.0, (20, 2)), 0.5)
    assert np.array_equal(shares, np.full((20, 2), 0.5))


def deal_one_by_one(shares: np.ndarray, shards: int, generator: np.random.Generator) -> np.ndarray:
    """Return how many shards of each class each client gets, following the specification in a plain loop."""
    clients, classes = shares.shape
    left, dealt = np.full(classes, shards), np.zeros(shares.shape)
    for turn in range(classes * shards):
        k = turn % clients
        weights = np.where(left > 0, shares[k], 0.0)
        if weights.sum() == 0:
            weights = (left > 0).astype(float)
        c = generator.choice(classes, p=weights / weights.sum())
        left[c] -= 1
        dealt[k, c] += 1
    return dealt


def test_drawing_all_turns_at_once_has_the_same_distribution_as_one_by_one():
    shares = favourite_shares(np.random.default_rng(5).normal(0.5, 1.0, (4, 3)), 0.6)
    partition = FavouriteClass(4, 0.6, shards_per_class=8)
    draws = 400
    fast, plain = np.zeros((draws, 4, 3)), np.zeros((draws, 4, 3))
    for seed in range(draws):
        owners_of = partition._deal(shares, np.random.default_rng(seed))
        fast[seed] = np.stack([np.bincount(owners, minlength=4) for owners in owners_of], axis=1)
        plain[seed] = deal_one_by_one(shares, 8, np.random.default_rng(10_000 + seed))
    error = np.sqrt((fast.var(axis=0) + plain.var(axis=0)) / draws)
    assert (np.abs(fast.mean(axis=0) - plain.mean(axis=0)) <= 4.5 * error).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shards(5, 0), "shards_per_client=0"),
        (lambda: Shards(5, 9).assign(np.zeros(40, dtype=int), 0), "makes 45 shards of 40 samples.* to 8 or fewer"),
        (lambda: FavouriteClass(5, 1.5), "eta=1.5"),
        (lambda: FavouriteClass(5, 0.5, shards_per_class=0), "shards_per_class=0"),
        (
            lambda: FavouriteClass(5, 0.5).assign(np.repeat([0, 7], [300, 120]), 0),
            "shards_per_class=200, but class 7 has 120 samples: set .* to 120 or fewer",
        ),
        (lambda: FavouriteClass(21, 0.5, 10).assign(np.arange(100) % 2, 0), "num_clients=21, but there are 2 x 10"),
    ],
)
def test_impossible_shards_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
