import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data.sizes import client_shares, cut, whole_sizes

SHARES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30)


@given(shares=SHARES, minimum=st.integers(0, 5), extra=st.integers(0, 1000))
@settings(deadline=None)
def test_whole_sizes_add_up_and_none_is_below_the_minimum(shares, minimum, extra):
    total = minimum * len(shares) + extra
    sizes = whole_sizes(total, np.array(shares), minimum)
    assert sizes.sum() == total
    assert sizes.min() >= minimum


@given(shares=SHARES, minimum=st.integers(1, 5), extra=st.integers(1, 1000))
@settings(deadline=None)
def test_who_is_above_the_minimum_is_in_proportion(shares, minimum, extra):
    total = minimum * len(shares) + extra
    low, high = 0.0, total / min(shares)
    for _ in range(200):  # the one factor with which the parts, none below the minimum, add up
        factor = (low + high) / 2
        if sum(max(minimum, factor * share) for share in shares) < total:
            low = factor
        else:
            high = factor
    expected = np.maximum(minimum, factor * np.array(shares))
    assert np.abs(whole_sizes(total, np.array(shares), minimum) - expected).max() < 1 + 1e-6


@given(clients=st.integers(1, 200), exponent=st.floats(0, 3), total=st.integers(10**5, 10**6))
@settings(deadline=None, max_examples=50)
def test_power_law_sizes_follow_the_formula(clients, exponent, total):
    sizes = whole_sizes(total, client_shares(clients, "power_law", exponent), minimum=0)
    weights = [1 / (k + 1) ** exponent for k in range(clients)]
    for size, weight in zip(sizes, weights, strict=True):
        assert abs(size - total * weight / sum(weights)) < 1 + 1e-6


def test_an_exponent_of_zero_is_balanced():
    assert client_shares(5, "power_law", 0.0).tolist() == client_shares(5, "balanced").tolist()


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_pieces_have_their_sizes_and_are_the_whole(sizes):
    pieces = cut(np.arange(sum(sizes)), np.array(sizes))
    assert [len(piece) for piece in pieces] == sizes
    assert np.concatenate(pieces).tolist() == list(range(sum(sizes)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: client_shares(5, "odd"), "sizes='odd'"),
        (lambda: client_shares(5, "power_law", -1), "exponent=-1"),
        (lambda: client_shares(5, "power_law", float("nan")), "exponent=nan"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(make, message):
    with pytest.raises(MisconfigurationException, match=message):
        make()
