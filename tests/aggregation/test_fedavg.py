"""FedAvg against the weighted mean computed with NumPy in float64, and the laws of an average."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import Aggregate, FedAvg, GatheredAggregator
from fl_lightning.core.errors import MisconfigurationError
from tests.toys import ConvNet, identical, random_state, random_updates


class GatheredMean(GatheredAggregator):
    """The same average, computed from all updates at once."""

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean))


def numpy_mean(updates: list[ClientUpdate], weighting: str) -> dict[str, np.ndarray]:
    sizes = np.array([update.num_samples if weighting == "samples" else 1 for update in updates], dtype=np.float64)
    expected = {}
    for name in updates[0].state:
        values = np.stack([update.state[name].numpy() for update in updates])
        if values.dtype == np.int64:
            expected[name] = values.max(axis=0)
        else:
            expected[name] = np.tensordot(sizes / sizes.sum(), values.astype(np.float64), axes=1)
    return expected


@pytest.mark.parametrize("aggregator", [FedAvg(), GatheredMean()])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_agrees_with_numpy(aggregator, weighting, generator):
    model = ConvNet()
    updates = random_updates(model, 7, generator)
    state = aggregator.aggregate(model, updates, weighting=weighting).state
    expected = numpy_mean(updates, weighting)
    for name in expected:
        np.testing.assert_allclose(state[name].numpy(), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_model_is_not_changed(generator):
    model = ConvNet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    FedAvg().aggregate(model, random_updates(model, 3, generator))
    assert identical(dict(model.state_dict()), before)


def test_the_largest_received_counter_is_kept(generator):
    model = ConvNet()
    model.norm.num_batches_tracked.fill_(1000)
    updates = random_updates(model, 3, generator)
    state = FedAvg().aggregate(model, updates).state
    assert state["norm.num_batches_tracked"] == max(update.state["norm.num_batches_tracked"] for update in updates)


def test_a_round_without_updates_is_refused():
    with pytest.raises(MisconfigurationError, match="at least one client"):
        FedAvg().aggregate(ConvNet(), [])


@pytest.mark.parametrize("aggregator", [FedAvg(), GatheredMean()])
@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 10**9))
@settings(max_examples=25, deadline=None)
def test_a_single_client_is_served_bit_for_bit(aggregator, seed, samples):
    model = ConvNet()
    state = random_state(model, np.random.default_rng(seed))
    result = aggregator.aggregate(model, [ClientUpdate(3, state, samples)])
    assert identical(result.state, state)
    assert result.served_state is result.state


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_the_order_of_clients_does_not_matter(seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, count, generator)
    shuffled = [updates[i] for i in generator.permutation(count)]
    first = FedAvg().aggregate(model, updates).state
    second = FedAvg().aggregate(model, shuffled).state
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_identical_clients_aggregate_to_that_client(seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    state = random_state(model, generator)
    sizes = generator.integers(1, 1000, size=count)
    updates = [ClientUpdate(k, state, int(size)) for k, size in enumerate(sizes)]
    result = FedAvg().aggregate(model, updates).state
    for name in state:
        torch.testing.assert_close(result[name], state[name], rtol=1e-7, atol=0)
