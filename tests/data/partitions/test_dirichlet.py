import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import Dirichlet
from tests.data.partitions.labels import cyclic_labels


@given(clients=st.integers(1, 20), alpha=st.floats(0.3, 100.0), seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_every_sample_has_one_owner_and_no_client_is_empty(clients, alpha, seed):
    parts = Dirichlet(clients, alpha).assign(cyclic_labels(10, 1000), seed)
    assert min(map(len, parts)) > 0
    assert sorted(np.concatenate(parts)) == list(range(1000))


@pytest.mark.parametrize("alpha", [1e9, float("inf")])
def test_a_large_alpha_gives_equal_parts_of_each_class(alpha):
    labels = cyclic_labels(10, 1000)
    for part in Dirichlet(10, alpha).assign(labels, seed=1):
        assert np.abs(np.bincount(labels[part], minlength=10) - 10).max() <= 1


def test_a_small_alpha_gives_each_class_to_few_clients():
    labels = cyclic_labels(10, 1000)
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in Dirichlet(5, 0.05).assign(labels, seed=1)])
    assert (counts.max(axis=0) / counts.sum(axis=0)).mean() > 0.7


def test_the_draw_is_repeated_until_every_client_has_min_samples():
    labels = cyclic_labels(10, 1000)
    assert min(map(len, Dirichlet(10, 0.5, min_samples=40).assign(labels, seed=0))) >= 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(5, 0.0), "alpha=0.0"),
        (lambda: Dirichlet(5, 1.0, min_samples=0), "min_samples=0"),
        (lambda: Dirichlet(40, 0.01).assign(cyclic_labels(2, 60), 0), "set alpha higher"),
    ],
)
def test_draws_that_cannot_succeed_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
