import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FreshDraw

LABELS = np.random.default_rng(0).permutation(np.arange(400) % 8)


@given(low=st.integers(1, 10), more=st.integers(0, 20), seed=st.integers(0, 10**6), round_=st.integers(0, 500))
@settings(deadline=None, max_examples=50)
def test_every_client_has_low_to_high_samples_of_every_class_without_duplicates(low, more, seed, round_):
    for samples in FreshDraw(3, low, low + more).draw(LABELS, seed, round_):
        counts = np.bincount(LABELS[samples], minlength=8)
        assert counts.min() >= low
        assert counts.max() <= low + more
        assert len(np.unique(samples)) == len(samples)


@given(seed=st.integers(0, 10**6), round_=st.integers(0, 500), client=st.integers(0, 9))
@settings(deadline=None, max_examples=50)
def test_the_draw_depends_only_on_seed_round_and_client(seed, round_, client):
    def drawn(seed: int, round_: int, client: int, clients: int = 10) -> list[int]:
        return FreshDraw(clients, 5, 5).draw(LABELS, seed, round_)[client].tolist()

    first = drawn(seed, round_, client)
    assert first == drawn(seed, round_, client, clients=50)
    others = [(seed + 1, round_, client), (seed, round_ + 1, client), (seed, round_, (client + 1) % 10)]
    assert all(drawn(*key) != first for key in others)


def test_all_numbers_from_low_to_high_are_equally_likely():
    drawn = FreshDraw(200, 1, 4).draw(LABELS, seed=0, round=0)
    counts = np.concatenate([np.bincount(LABELS[samples], minlength=8) for samples in drawn])
    assert np.abs(np.bincount(counts, minlength=5)[1:] - 400).max() < 5 * np.sqrt(1600 * 0.25 * 0.75)


def test_samples_are_drawn_only_for_requested_clients():
    draws = FreshDraw(10**9, 1, 2).draw(LABELS, seed=0, round=0)
    assert len(draws) == 10**9
    assert draws[10**9 - 1] is draws[10**9 - 1]
    with pytest.raises(IndexError):
        draws[10**9]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FreshDraw(3, 0, 5), "low=0: set data.partition.init_args.low to 1 or more"),
        (lambda: FreshDraw(3, 5, 4), "high=4, but low=5: set data.partition.init_args.high to 5 or more"),
        (lambda: FreshDraw(3, 1, 51).assign(LABELS, 0), "high=51, but class 0 has 50 samples: set .* to 50 or fewer"),
    ],
)
def test_impossible_draws_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
