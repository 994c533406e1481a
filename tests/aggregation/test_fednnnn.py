"""FedNNNN, Norm-Norm and Momentum against NumPy in float64, written from algorithm 3 of the paper."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedAvg, FedNNNN, Momentum, NormNorm
from fl_lightning.core.errors import MisconfigurationError
from tests.toys import ConvNet, identical, random_state, random_updates

PARAMETERS = [name for name, parameter in ConvNet().named_parameters() if parameter.requires_grad]
LAYERS = [["conv.weight", "conv.bias"], ["norm.weight", "norm.bias"], ["hidden.weight", "hidden.bias"]]
LAYERS += [["head.weight", "head.bias"]]


def vector(state, names) -> np.ndarray:
    return np.concatenate([state[name].detach().numpy().astype(np.float64).ravel() for name in names])


class Paper:
    """Algorithm 3, lines 9-12, for one group of parameters. beta=None or gamma=0 switches that half off."""

    def __init__(self, beta, gamma) -> None:
        self.beta, self.gamma, self.d = beta, gamma, 0.0

    def next(self, start: np.ndarray, clients: list[np.ndarray], p: np.ndarray) -> np.ndarray:
        deltas = [client - start for client in clients]
        average = sum(share * delta for share, delta in zip(p, deltas, strict=True))
        factor = 1.0
        if self.beta is not None:
            n = np.sqrt((average**2).sum())
            e = sum(share * np.sqrt((delta**2).sum()) for share, delta in zip(p, deltas, strict=True))
            factor = self.beta * e / n
        self.d = self.gamma * self.d + factor * average
        return start + self.d


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("aggregator", "beta", "gamma", "groups"),
    [
        (lambda: FedNNNN(beta=0.7, gamma=0.8), 0.7, 0.8, [PARAMETERS]),
        (lambda: FedNNNN(beta=0.7, gamma=0.8, granularity="layer"), 0.7, 0.8, LAYERS),
        (lambda: NormNorm(beta=1.1), 1.1, 0.0, [PARAMETERS]),
        (lambda: NormNorm(beta=1.1, granularity="layer"), 1.1, 0.0, LAYERS),
        (lambda: Momentum(gamma=0.9), None, 0.9, [PARAMETERS]),
    ],
)
def test_three_rounds_agree_with_the_paper(aggregator, beta, gamma, groups, weighting, generator):
    aggregator, model = aggregator(), ConvNet()
    papers = [Paper(beta, gamma) for _ in groups]
    for _ in range(3):
        updates = random_updates(model, 5, generator)
        sizes = np.array([update.num_samples if weighting == "samples" else 1.0 for update in updates])
        p = sizes / sizes.sum()
        start = {name: value.clone() for name, value in model.state_dict().items()}
        result = aggregator.aggregate(model, updates, weighting=weighting)
        for paper, names in zip(papers, groups, strict=True):
            expected = paper.next(vector(start, names), [vector(u.state, names) for u in updates], p)
            np.testing.assert_allclose(vector(result.state, names), expected, rtol=1e-5, atol=1e-5)
        model.load_state_dict(result.state)


@pytest.mark.parametrize("aggregator", [FedNNNN(0.7, 0.8), NormNorm(1.0), Momentum(0.9)])
def test_the_plain_average_is_served_and_both_models_average_the_statistics(aggregator, generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    result = aggregator.aggregate(model, updates)
    average = FedAvg().aggregate(model, updates).state
    assert identical(result.served_state, average)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(result.state[name], average[name])


def test_the_clients_next_start_lies_beta_e_away(generator):
    """Eq. 9."""
    model = ConvNet()
    updates = random_updates(model, 6, generator)
    start = vector(model.state_dict(), PARAMETERS)
    moved = vector(NormNorm(beta=0.6).aggregate(model, updates, "uniform").state, PARAMETERS) - start
    e = np.mean([np.linalg.norm(vector(update.state, PARAMETERS) - start) for update in updates])
    assert np.linalg.norm(moved) == pytest.approx(0.6 * e, rel=1e-5)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_n_never_exceeds_e(seed, count):
    """Proposition 1."""
    generator = np.random.default_rng(seed)
    model, aggregator = ConvNet(), NormNorm(beta=1.0)
    aggregator.aggregate(model, random_updates(model, count, generator))
    n = (aggregator.mean.parameters - aggregator.start.parameters).norm()
    assert n <= aggregator.sums["norm"] / aggregator.sums["weight"] * (1 + 1e-12)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_a_gamma_of_zero_and_a_beta_of_n_over_e_is_fedavg(seed):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    start = vector(model.state_dict(), PARAMETERS)
    p = np.array([update.num_samples for update in updates], dtype=float)
    p /= p.sum()
    deltas = np.stack([vector(update.state, PARAMETERS) - start for update in updates])
    beta = np.linalg.norm(p @ deltas) / (p @ np.linalg.norm(deltas, axis=1))
    result = FedNNNN(beta=float(beta), gamma=0.0).aggregate(model, updates).state
    average = FedAvg().aggregate(model, updates).state
    for name in average:
        torch.testing.assert_close(result[name], average[name], rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), beta=st.floats(0.1, 2.0), count=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_identical_clients_are_served_and_the_next_start_is_w_plus_beta_delta(seed, beta, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    state = random_state(model, generator)
    result = FedNNNN(beta=beta, gamma=0.5).aggregate(model, [ClientUpdate(k, state, 1 + k) for k in range(count)])
    start = model.state_dict()
    for name in PARAMETERS:
        torch.testing.assert_close(result.served_state[name], state[name], rtol=1e-6, atol=1e-7)
        expected = start[name] + beta * (state[name] - start[name])
        torch.testing.assert_close(result.state[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_without_a_direction_the_model_and_the_momentum_stay_the_same(granularity, generator):
    model, aggregator = ConvNet(), FedNNNN(beta=0.7, gamma=0.8, granularity=granularity)
    first = aggregator.aggregate(model, random_updates(model, 3, generator))
    model.load_state_dict(first.state)
    momentum = aggregator.momentum.clone()
    still = {name: value.clone() for name, value in model.state_dict().items()}
    result = aggregator.aggregate(model, [ClientUpdate(0, still, 5), ClientUpdate(1, still, 2)])
    assert identical(result.state, still)
    assert torch.equal(aggregator.momentum, momentum)


def test_momentum_decays_while_clients_stand_still(generator):
    model, aggregator = ConvNet(), Momentum(gamma=0.5)
    model.load_state_dict(aggregator.aggregate(model, random_updates(model, 2, generator)).state)
    d = aggregator.momentum.clone()
    aggregator.aggregate(model, [ClientUpdate(0, dict(model.state_dict()), 5)])
    torch.testing.assert_close(aggregator.momentum, 0.5 * d)


def test_a_layer_that_nobody_moved_stays_the_same_while_the_others_move(generator):
    model = ConvNet()
    updates = random_updates(model, 3, generator)
    for update in updates:
        update.state["hidden.weight"], update.state["hidden.bias"] = model.hidden.weight, model.hidden.bias
    result = FedNNNN(beta=0.7, gamma=0.8, granularity="layer").aggregate(model, updates).state
    assert torch.equal(result["hidden.weight"], model.hidden.weight)
    assert not torch.equal(result["head.weight"], model.head.weight)
    assert all(value.isfinite().all() for value in result.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedNNNN(beta=0.0, gamma=0.5), "beta=0.0"),
        (lambda: FedNNNN(beta=1.0, gamma=1.0), "gamma=1.0"),
        (lambda: Momentum(gamma=-0.1), "gamma=-0.1"),
        (lambda: NormNorm(beta=1.0, granularity="block"), "granularity='block'"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
