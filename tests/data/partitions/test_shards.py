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


@pytest.mark.filterwarnings("ignore:.*too few shards")
@given(clients=st.integers(1, 25), classes=st.integers(1, 6), eta=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_favourites_give_no_sample_two_owners_and_every_client_the_same_number_of_shards(clients, classes, eta, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 75))
    parts = FavouriteClass(clients, eta, shards_per_class=25).assign(labels, seed)  # a shard has three samples
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    assert (counts % 3 == 0).all()
    shards = counts.sum(axis=1) // 3
    assert np.ptp(shards) <= 1
    of_favourite = counts[np.arange(clients), np.arange(clients) % classes] // 3
    assert (of_favourite >= np.floor(eta * shards + 0.5)).all()
    if clients % classes == 0:
        assert len(used) == 75 * classes


@pytest.mark.parametrize(
    ("clients", "eta"), [(20, 0.5), (15, 0.5), (10, 0.5), (5, 0.5), (7, 0.3), (20, 0.1), (20, 0.9)]
)
def test_the_share_of_the_favourite_is_eta_for_any_number_of_clients_and_all_samples_are_used(clients, eta):
    labels = np.repeat(np.arange(10), 4800)  # 48,000 images, 24 per shard
    parts = FavouriteClass(clients, eta).assign(labels, seed=1)
    assert sum(map(len, parts)) == 48_000
    for client, part in enumerate(parts):
        shards = len(part) / 24
        assert abs(np.sum(labels[part] == client % 10) / 24 - eta * shards) <= 0.5


def test_an_eta_that_needs_more_of_a_class_than_there_is_gives_every_client_fewer_shards():
    labels = np.repeat(np.arange(10), 4800)
    with pytest.warns(UserWarning, match="every client gets 222 shards, and 890 of 2000 are unused"):
        parts = FavouriteClass(5, 0.9).assign(labels, seed=1)
    # a class has 200 shards, so a client can have 200 / 0.9 = 222 in all
    assert [np.sum(labels[part] == client) / 24 for client, part in enumerate(parts)] == [200] * 5
    assert [len(part) / 24 for part in parts] == [222] * 5


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


def deal_one_by_one(shares: np.ndarray, turns: int, left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return how many shards of each class each client draws, following the specification in a plain loop."""
    clients, classes = shares.shape
    left, dealt = left.copy(), np.zeros(shares.shape)
    for turn in range(turns * clients):
        k = turn % clients
        weights = np.where(left > 0, shares[k], 0.0)
        if weights.sum() == 0:
            weights = np.array([float(left[c] > 0 and c != k % classes) for c in range(classes)])
        if weights.sum() == 0:
            weights = (left > 0).astype(float)
        c = generator.choice(classes, p=weights / weights.sum())
        left[c] -= 1
        dealt[k, c] += 1
    return dealt


def test_drawing_all_turns_at_once_has_the_same_distribution_as_one_by_one():
    shares = favourite_shares(np.random.default_rng(5).normal(0.5, 1.0, (4, 3)), 0.6)
    shares[np.arange(4), np.arange(4) % 3] = 0.0
    partition = FavouriteClass(4, 0.6, shards_per_class=8)
    left, turns, draws = np.array([3, 5, 4]), 3, 400  # all of the shards that are left are dealt
    fast, plain = np.zeros((draws, 4, 3)), np.zeros((draws, 4, 3))
    for seed in range(draws):
        fast[seed] = partition._deal(shares, np.full(4, turns), left, np.random.default_rng(seed))
        plain[seed] = deal_one_by_one(shares, turns, left, np.random.default_rng(10_000 + seed))
    assert (fast.sum(axis=1) == left).all()
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
