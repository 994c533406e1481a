import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data import IID
from tests.data.partitions.labels import cyclic_labels

SIZES = st.sampled_from(["balanced", "power_law"])


@given(clients=st.integers(1, 40), samples=st.integers(40, 400), sizes=SIZES, seed=st.integers(0, 10**6))
@settings(deadline=None)
def test_every_sample_has_one_owner_and_no_client_is_empty(clients, samples, sizes, seed):
    parts = IID(clients, sizes=sizes).assign(cyclic_labels(4, samples), seed)
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert sorted(np.concatenate(parts)) == list(range(samples))


def test_power_law_sizes_match_the_specification():
    sizes = [len(part) for part in IID(100, sizes="power_law").assign(cyclic_labels(), seed=0)]
    assert (sizes[0], sizes[-1], sum(sizes)) == (11_567, 116, 60_000)
    assert sum(sizes[:10]) / 60_000 == pytest.approx(0.56, abs=0.01)


@given(clients=st.integers(1, 20), minimum=st.integers(1, 10), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_client_has_at_least_min_samples(clients, minimum, seed):
    partition = IID(clients, sizes="power_law", exponent=2.0, min_samples=minimum)
    assert min(map(len, partition.assign(cyclic_labels(4, 1600), seed))) >= minimum
