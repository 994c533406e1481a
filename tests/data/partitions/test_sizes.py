import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.partitions.sizes import client_shares, whole_sizes

SHARES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30)


@given(shares=SHARES, minimum=st.integers(0, 5), extra=st.integers(0, 1000))
@settings(deadline=None)
def test_sizes_add_up_and_none_is_below_the_minimum(shares, minimum, extra):
    total = minimum * len(shares) + extra
    sizes = whole_sizes(total, np.array(shares), minimum)
    assert sizes.sum() == total
    assert sizes.min() >= minimum


@given(shares=SHARES, minimum=st.integers(1, 5), extra=st.integers(1, 1000))
@settings(deadline=None)
def test_sizes_above_the_minimum_are_proportional_to_their_shares(shares, minimum, extra):
    total = minimum * len(shares) + extra
    low, high = 0.0, total / min(shares)
    for _ in range(200):  # bisect for the factor with which the parts add up to the total
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: client_shares(5, "odd"), "sizes='odd'"),
        (lambda: client_shares(5, "power_law", -1), "exponent=-1"),
        (lambda: client_shares(5, "power_law", float("nan")), "exponent=nan"),
    ],
)
def test_unknown_sizes_and_bad_exponents_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
