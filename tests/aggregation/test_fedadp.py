"""FedAdp against its equations in NumPy, over rounds with changing clients, and the laws of its weights."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation.fedadp import FedAdp
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.metrics.functional import angles_of, gompertz, products_of
from tests.toys import ConvNet, federate, identical, random_state, random_updates

COHORTS = [[0, 1, 2, 3, 4], [1, 3, 5], [0, 5], [2, 3, 4, 5]]


class NumpyFedAdp:
    """Algorithm 1, lines 9-13, over vectors in float64."""

    def __init__(self, alpha: float = 5.0) -> None:
        self.alpha = alpha
        self.history: dict[int, list[float]] = {}

    def weights(self, deltas: dict[int, np.ndarray], sizes: dict[int, float]) -> dict[int, float]:
        total = sum(sizes.values())
        gradient = sum(sizes[k] / total * -deltas[k] for k in deltas)
        self.angles = {}
        for k, delta in deltas.items():
            cosine = gradient @ -delta / (np.linalg.norm(gradient) * np.linalg.norm(delta))
            self.angles[k] = np.arccos(cosine)
            self.history.setdefault(k, []).append(self.angles[k])
        self.smoothed = {k: np.mean(self.history[k]) for k in deltas}
        f = {k: self.alpha * (1 - np.exp(-np.exp(-self.alpha * (self.smoothed[k] - 1)))) for k in deltas}
        scale = sum(sizes[k] * np.exp(f[k]) for k in deltas)
        return {k: sizes[k] * np.exp(f[k]) / scale for k in deltas}


def trainable(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def vector(state, names) -> np.ndarray:
    return np.concatenate([state[name].detach().numpy().ravel() for name in names]).astype(np.float64)


def updates_of(model: nn.Module, clients: list[int], generator: np.random.Generator) -> list[ClientUpdate]:
    drawn = random_updates(model, len(clients), generator)
    return [replace(update, client=client) for update, client in zip(drawn, clients, strict=True)]


def vectors(*rows, sizes=None, rates=None) -> tuple[nn.Module, list[ClientUpdate]]:
    """Return a model of two parameters at 0, and clients that move it to the rows."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    updates = [
        ClientUpdate(k, {"weight": torch.tensor([row], dtype=torch.float32)}, n, learning_rate=rate)
        for k, (row, n, rate) in enumerate(
            zip(rows, sizes or [1] * len(rows), rates or [None] * len(rows), strict=True)
        )
    ]
    return model, updates


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("alpha", [5.0, 2.0])
def test_rounds_with_changing_clients_agree_with_numpy(weighting, alpha, generator):
    model, aggregator, reference = ConvNet(), FedAdp(alpha), NumpyFedAdp(alpha)
    names = trainable(model)
    for cohort in COHORTS:
        updates = updates_of(model, cohort, generator)
        sizes = {u.client: u.num_samples if weighting == "samples" else 1 for u in updates}
        total = sum(sizes.values())
        start = vector(model.state_dict(), names)
        deltas = {u.client: vector(u.state, names) - start for u in updates}
        psi = reference.weights(deltas, sizes)
        counters = [u.state["norm.num_batches_tracked"] for u in updates]

        state = aggregator.aggregate(model, updates, weighting=weighting).state

        expected = start + sum(psi[k] * deltas[k] for k in cohort)
        np.testing.assert_allclose(vector(state, names), expected, rtol=1e-5, atol=1e-7)
        for name in ("norm.running_mean", "norm.running_var"):
            mean = sum(sizes[u.client] / total * u.state[name].numpy().astype(np.float64) for u in updates)
            np.testing.assert_allclose(state[name].numpy(), mean, rtol=1e-5, atol=1e-7, err_msg=name)
        assert state["norm.num_batches_tracked"] == max(counters)
        assert aggregator.angles == pytest.approx(reference.angles, rel=1e-5)
        assert aggregator.smoothed_angles == pytest.approx(reference.smoothed, rel=1e-5)
        assert aggregator.contributions == pytest.approx(psi, rel=1e-5)
        model.load_state_dict(state)


@pytest.mark.parametrize(("angle", "value"), [(0.0, 5.000), (1.0, 3.161), (np.pi / 2, 0.280)])
def test_the_mapping_has_the_papers_values(angle, value):
    assert float(gompertz(torch.tensor(angle, dtype=torch.float64), alpha=5.0)) == pytest.approx(value, abs=5e-4)


def test_an_alpha_of_zero_is_fedavg(generator):
    model = ConvNet()
    updates = random_updates(model, 5, generator)
    aggregator = FedAdp(alpha=0)
    aggregator.aggregate(model, updates)
    total = sum(update.num_samples for update in updates)
    assert aggregator.contributions == pytest.approx({u.client: u.num_samples / total for u in updates})


def test_a_huge_alpha_does_not_overflow():
    model, updates = vectors([1, 0], [0, 1])
    aggregator = FedAdp(alpha=1000)
    aggregator.aggregate(model, updates)
    assert aggregator.contributions == pytest.approx({0: 0.5, 1: 0.5})


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_weighted_cosines_are_at_least_as_large_as_with_fedavg(seed, count):
    """Theorem 2, with the angles of one round."""
    model = ConvNet()
    updates = random_updates(model, count, np.random.default_rng(seed))
    aggregator = FedAdp()
    aggregator.aggregate(model, updates)
    cosine = {k: np.cos(angle) for k, angle in aggregator.angles.items()}
    total = sum(update.num_samples for update in updates)
    plain = sum(update.num_samples / total * cosine[update.client] for update in updates)
    assert sum(psi * cosine[k] for k, psi in aggregator.contributions.items()) >= plain - 1e-12


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_contributions_are_a_distribution_over_the_clients_of_the_round(seed, count):
    model = ConvNet()
    aggregator = FedAdp()
    aggregator.aggregate(model, random_updates(model, count, np.random.default_rng(seed)))
    assert list(aggregator.contributions) == list(range(count))
    assert all(psi >= 0 for psi in aggregator.contributions.values())
    assert sum(aggregator.contributions.values()) == pytest.approx(1, abs=1e-12)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_the_order_of_clients_does_not_matter(seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, count, generator)
    renumbered = [replace(updates[i], client=client) for client, i in enumerate(generator.permutation(count))]
    first, second = (FedAdp().aggregate(model, clients).state for clients in (updates, renumbered))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_identical_clients_aggregate_to_that_client(seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    state = random_state(model, generator)
    updates = [ClientUpdate(k, state, int(generator.integers(1, 1000))) for k in range(count)]
    result = FedAdp().aggregate(model, updates).state
    for name in state:
        torch.testing.assert_close(result[name], state[name], rtol=1e-6, atol=1e-6)


def test_one_client_with_one_sample_has_the_angle_zero_and_all_the_weight(generator):
    model = ConvNet()
    aggregator = FedAdp()
    aggregator.aggregate(model, [ClientUpdate(3, random_state(model, generator), num_samples=1)])
    assert aggregator.angles == {3: 0.0}
    assert aggregator.contributions == {3: 1.0}


def test_an_update_opposite_to_the_average_has_the_angle_pi():
    model, updates = vectors([2, 0], [-1, 0])
    aggregator = FedAdp()
    aggregator.aggregate(model, updates)
    assert aggregator.angles == pytest.approx({0: 0.0, 1: np.pi})


@pytest.mark.parametrize(("sign", "angle"), [(1, 0.0), (-1, np.pi)])
def test_a_cosine_that_rounds_beyond_one_has_an_angle(sign, angle):
    first = torch.tensor([0.1, 1.0]).double()
    second = sign * (first * 3 / 10)
    assert abs(float(first @ second)) > np.sqrt(float(first @ first) * float(second @ second))
    assert angles_of(first, products_of(first, second)[None]) == [angle]


def test_a_zero_update_has_the_angle_half_pi():
    model, updates = vectors([1, 0], [0, 0])
    aggregator = FedAdp()
    state = aggregator.aggregate(model, updates).state
    assert aggregator.angles == {0: 0.0, 1: np.pi / 2}
    assert state["weight"].isfinite().all()


def test_updates_that_cancel_have_the_angle_half_pi_and_leave_the_model_unchanged():
    model, updates = vectors([1, 2], [-1, -2])
    aggregator = FedAdp()
    state = aggregator.aggregate(model, updates).state
    assert aggregator.angles == {0: np.pi / 2, 1: np.pi / 2}
    assert torch.equal(state["weight"], model.weight)


def test_the_logged_angle_is_the_mean_of_this_round_alone():
    aggregator = FedAdp()
    aggregator.aggregate(*vectors([1, 0], [1, 0]))
    metrics = aggregator.aggregate(*vectors([1, 0], [0, 1])).metrics
    assert metrics["fedadp/angle_mean"] == pytest.approx(np.pi / 4)


@pytest.mark.parametrize(
    ("rates", "eta"),
    [([None, None], 1), ([0.1, 0.1], 0.1), ([0.1, 0.3], 0.2), ([0.5, None], 0.5), ([0.0, 0.0], 1)],
    ids=["unreported", "equal", "unequal", "one reports", "zero"],
)
def test_the_divergence_is_in_units_of_the_mean_learning_rate(rates, eta):
    model, updates = vectors([3, 0], [0, 4], rates=rates)
    metrics = FedAdp().aggregate(model, updates).metrics
    assert metrics["fedadp/divergence"] == pytest.approx(2.5 / eta)  # both are half the hypotenuse from the mean


def saved(aggregator: FedAdp) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(aggregator.state_dict(), file)
    file.seek(0)
    return file


def test_a_resumed_aggregator_continues_like_an_uninterrupted_one(generator):
    model = ConvNet()
    rounds = [updates_of(model, cohort, generator) for cohort in COHORTS]
    undisturbed, first, resumed = FedAdp(), FedAdp(), FedAdp()
    expected = [undisturbed.aggregate(model, updates).state for updates in rounds]
    for updates in rounds[:2]:
        first.aggregate(model, updates)
    resumed.load_state_dict(torch.load(saved(first), weights_only=True))
    for updates, state in zip(rounds[2:], expected[2:], strict=True):
        assert identical(resumed.aggregate(model, updates).state, state)
    assert resumed.smoothed_angles == undisturbed.smoothed_angles


def test_a_checkpoint_grows_by_three_numbers_per_client():
    model, [update] = vectors([1, 0])
    sizes = []
    for count in (1_000, 3_000):
        aggregator = FedAdp()
        aggregator.aggregate(model, [replace(update, client=client) for client in range(count)])
        sizes.append(len(saved(aggregator).getvalue()))
    # a client number, a sum and a count of 8 bytes each; torch.save aligns each tensor to 64 bytes
    assert sizes[1] - sizes[0] == pytest.approx(2_000 * 3 * 8, abs=3 * 64)


def test_a_run_logs_the_angle_and_the_divergence():
    _, trainer = federate(server=FederatedServer(FedAdp()), rounds=2)
    assert 0 <= trainer.callback_metrics["fedadp/angle_mean"] <= np.pi
    assert trainer.callback_metrics["fedadp/divergence"] > 0


def test_a_negative_alpha_is_refused():
    with pytest.raises(MisconfigurationError, match=r"alpha=-1.*set alpha of FedAdp to 0 or more"):
        FedAdp(alpha=-1)
