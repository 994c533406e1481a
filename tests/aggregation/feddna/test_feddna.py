"""FedDNA against its formulas in float64 NumPy, against FedAvg in the parameters, and in degenerate cases."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedAvg, FedDNA, Federation
from fl_lightning.aggregation.feddna.importance import Gaussian, Statistics, divergence, standardised, twins
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID
from tests.toys import ConvNet, Net, federate, identical, random_updates

STATISTICS = {"norm.running_mean", "norm.running_var"}


class LayerNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.bare = nn.LayerNorm(5, elementwise_affine=False)


def numpy_pool(means, variances, sizes):
    """Return the plain mean, and the mean of the variances weighted by n - 1, or uniformly if every n is 1."""
    freedom = [size - 1 for size in sizes]
    if sum(freedom) == 0:
        freedom = [1] * len(sizes)
    var = sum(weight * value for weight, value in zip(freedom, variances, strict=True)) / sum(freedom)
    return sum(means) / len(means), var


def numpy_twins(means, variances, sizes):
    return [
        numpy_pool(*([value for i, value in enumerate(values) if i != k] for values in (means, variances, sizes)))
        for k in range(len(sizes))
    ]


def numpy_moved(means, variances, sizes, gammas):
    others = numpy_twins(means, variances, sizes)
    return (
        [g * mean + (1 - g) * other for g, mean, (other, _) in zip(gammas, means, others, strict=True)],
        [g * var + (1 - g) * other for g, var, (_, other) in zip(gammas, variances, others, strict=True)],
    )


def sizes_of(updates: list[ClientUpdate], weighting: str) -> list[int]:
    return [update.num_samples if weighting == "samples" else 1 for update in updates]


def values_of(updates: list[ClientUpdate], name: str) -> list[np.ndarray]:
    return [update.state[name].numpy().astype(np.float64) for update in updates]


def close(actual: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-5)


def clients(means, variances, sizes=None) -> tuple[nn.Module, list[ClientUpdate]]:
    """Return a model that has only statistics, and clients with these statistics."""
    model = nn.BatchNorm1d(len(means[0]))
    sizes = [10] * len(means) if sizes is None else sizes
    updates = []
    for client, (mean, var, size) in enumerate(zip(means, variances, sizes, strict=True)):
        state = copy.deepcopy(dict(model.state_dict()))
        state["running_mean"].copy_(torch.as_tensor(mean))
        state["running_var"].copy_(torch.as_tensor(var))
        updates.append(ClientUpdate(client, state, int(size)))
    return model, updates


def random_clients(count: int, entries: int, generator: np.random.Generator) -> tuple[nn.Module, list[ClientUpdate]]:
    means, variances = generator.normal(size=(count, entries)), generator.gamma(2.0, size=(count, entries))
    return clients(means, variances, generator.integers(2, 500, size=count))


def returned(aggregator: FedDNA, updates: list[ClientUpdate]) -> list[ClientUpdate]:
    """Return what the clients would send next without training: the statistics that they got back."""
    return [
        ClientUpdate(update.client, {**update.state, **aggregator.personal_state(update.client)}, update.num_samples)
        for update in updates
    ]


def all_states(aggregator: FedDNA, count: int) -> list[dict[str, Tensor]]:
    return [aggregator.personal_state(client) for client in range(count)]


@pytest.mark.parametrize("sizes", [[3, 1, 700, 20], [1, 1, 1, 1], [1, 1, 1, 50]])
def test_twins_agree_with_numpy(sizes, generator):
    means, variances = generator.normal(size=(4, 6)), generator.gamma(2.0, size=(4, 6))
    result = twins(Statistics(torch.tensor(means), torch.tensor(variances)), torch.tensor(sizes, dtype=torch.float64))
    expected = numpy_twins(list(means), list(variances), sizes)
    for mean, var, (expected_mean, expected_var) in zip(*result, expected, strict=True):
        close(mean, expected_mean)
        close(var, expected_var)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("model", [ConvNet(), LayerNormNet()])
def test_personal_and_served_statistics_agree_with_numpy(model, weighting, generator):
    mean_name, var_name = (
        ("norm.running_mean", "norm.running_var") if isinstance(model, ConvNet) else ("norm.bias", "norm.weight")
    )
    updates, aggregator = random_updates(model, 6, generator), FedDNA()
    served = aggregator.aggregate(model, updates, weighting).state

    assert list(aggregator.gammas) == [update.client for update in updates]
    assert len(set(aggregator.gammas.values())) > 1
    assert all(0 < gamma < 1 for gamma in aggregator.gammas.values())
    sizes = sizes_of(updates, weighting)
    means, variances = numpy_moved(
        values_of(updates, mean_name), values_of(updates, var_name), sizes, aggregator.gammas.values()
    )
    for update, mean, var in zip(updates, means, variances, strict=True):
        personal = aggregator.personal_state(update.client)
        assert personal.keys() == {mean_name, var_name}
        assert personal[mean_name].dtype == torch.float32
        close(personal[mean_name], mean)
        close(personal[var_name], var)
    mean, var = numpy_pool(means, variances, sizes)
    close(served[mean_name], mean)
    close(served[var_name], var)


def test_the_divergence_agrees_with_numerical_integration():
    p_mean, p_log_var, q_mean, q_log_var = 0.3, -0.7, -1.1, 0.9
    result = divergence(
        Gaussian(torch.tensor([[p_mean, q_mean]]), torch.tensor([[p_log_var, q_log_var]])),
        Gaussian(torch.tensor([[q_mean, p_mean]]), torch.tensor([[q_log_var, p_log_var]])),
    )
    x = np.linspace(-20, 20, 200_001)

    def log_density(mean, log_var):
        return -0.5 * (np.log(2 * np.pi) + log_var + (x - mean) ** 2 / np.exp(log_var))

    p, q = log_density(p_mean, p_log_var), log_density(q_mean, q_log_var)
    integrals = [np.sum(np.exp(a) * (a - b)) * (x[1] - x[0]) for a, b in ((p, q), (q, p))]
    np.testing.assert_allclose(result.numpy(), [integrals], rtol=1e-5)


def test_the_vaes_inputs_and_the_spread_agree_with_numpy(generator):
    model, updates = random_clients(5, 3, generator)
    means, variances = values_of(updates, "running_mean"), values_of(updates, "running_var")
    mean, var = numpy_pool(means, variances, sizes_of(updates, "samples"))
    scaled = (np.stack(means) - mean) / np.sqrt(var + 1e-5)
    result = standardised(
        Statistics(torch.tensor(np.stack(means)), torch.tensor(np.stack(variances))),
        Statistics(torch.tensor(mean)[None], torch.tensor(var)[None]),
    )
    close(result, np.hstack([scaled, np.log((np.stack(variances) + 1e-5) / (var + 1e-5))]))
    metrics = FedDNA().aggregate(model, updates).metrics
    assert metrics["feddna/spread"] == pytest.approx(scaled.std(axis=0).mean(), rel=1e-5)


def test_metrics_summarise_the_gammas(generator):
    aggregator = FedDNA()
    metrics = aggregator.aggregate(*random_clients(5, 3, generator)).metrics
    gammas = list(aggregator.gammas.values())
    assert all(0 < gamma < 1 for gamma in gammas)
    assert float(metrics["feddna/gamma_min"]) == min(gammas)
    assert float(metrics["feddna/gamma_max"]) == max(gammas)
    assert float(metrics["feddna/gamma_mean"]) == pytest.approx(sum(gammas) / 5)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6), weighting=st.sampled_from(["samples", "uniform"]))
@settings(max_examples=25, deadline=None)
def test_everything_but_the_statistics_equals_fedavg_bit_for_bit(seed, count, weighting):
    model = ConvNet()
    model.register_buffer("other", torch.zeros(3))
    updates = random_updates(model, count, np.random.default_rng(seed))
    result = FedDNA(steps=1).aggregate(model, updates, weighting)
    expected = FedAvg().aggregate(model, updates, weighting).state
    assert result.state is result.served_state
    assert result.state.keys() == expected.keys()
    assert all(torch.equal(result.state[name], expected[name]) for name in expected.keys() - STATISTICS)


def test_a_run_has_the_parameters_of_fedavg_bit_for_bit_but_other_statistics():
    states = []
    for aggregator in (FedAvg(), FedDNA()):
        torch.manual_seed(0)
        server = FederatedServer(aggregator)
        module, _ = federate(Net(batch_norm=True), partition=IID(4, sizes="power_law"), server=server, rounds=3)
        states.append(dict(module.state_dict()))
    first, second = states
    different = {name for name in first if not torch.equal(first[name], second[name])}
    assert different == {"layers.1.running_mean", "layers.1.running_var"}


def test_clients_that_do_not_train_soon_agree(generator):
    model, updates = random_clients(20, 200, generator)
    began = FedDNA(steps=1)
    began.aggregate(model, updates)
    aggregator = FedDNA()
    spreads = []
    for _ in range(5):
        spreads.append(aggregator.aggregate(model, updates).metrics["feddna/spread"])
        updates = returned(aggregator, updates)
    assert all(after <= before / 10 for before, after in pairwise(spreads)), spreads
    assert max(aggregator.gammas.values()) < min(began.gammas.values())


def test_two_clients_meet_instead_of_swapping(generator):
    model, updates = random_clients(2, 100, generator)
    aggregator = FedDNA()
    before = aggregator.aggregate(model, updates).metrics["feddna/spread"]
    after = aggregator.aggregate(model, returned(aggregator, updates)).metrics["feddna/spread"]
    assert after < before / 10


@given(
    means=st.lists(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_statistics_stay_finite_and_variances_positive(means, data):
    count = len(means)
    some = st.one_of(st.just(0.0), st.floats(0, 1e30))
    variances = data.draw(st.lists(st.lists(some, min_size=3, max_size=3), min_size=count, max_size=count))
    sizes = data.draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count))
    model, updates = clients(means, variances, sizes)
    aggregator = FedDNA(steps=12)
    for _ in range(2):
        result = aggregator.aggregate(model, updates)
        for state in [result.state, *all_states(aggregator, count)]:
            assert state["running_mean"].isfinite().all()
            assert state["running_var"].isfinite().all()
            assert (state["running_var"] >= 0).all()
        assert all(np.isfinite(float(value)) for value in result.metrics.values())
        updates = returned(aggregator, updates)


@pytest.mark.parametrize("var", [0.0, 2.0])
@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("count", [2, 5])
def test_identical_clients_keep_their_common_statistics(count, size, var):
    model, updates = clients([[1.0, -3.0]] * count, [[var, 1.0]] * count, [size] * count)
    aggregator = FedDNA()
    result = aggregator.aggregate(model, updates)
    assert result.metrics["feddna/spread"] == 0
    for state in [result.state, *all_states(aggregator, count)]:
        torch.testing.assert_close(state["running_mean"], torch.tensor([1.0, -3.0]))
        torch.testing.assert_close(state["running_var"], torch.tensor([var, 1.0]))


@pytest.mark.parametrize("samples", [1, 7])
def test_a_single_client_keeps_its_own_statistics_bit_for_bit(samples, generator):
    model = ConvNet()
    update = random_updates(model, 1, generator)[0]
    update.num_samples = samples
    aggregator = FedDNA()
    state = aggregator.aggregate(model, [update]).state
    own = {name: update.state[name] for name in STATISTICS}
    assert identical(aggregator.personal_state(0), own)
    assert identical({name: state[name] for name in STATISTICS}, own)
    assert aggregator.gammas == {0: 1.0}
    assert aggregator.state_dict()["learned"] is None


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6))
@settings(max_examples=10, deadline=None)
def test_the_order_of_clients_does_not_matter(seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, count, generator)
    first, second = FedDNA(steps=15), FedDNA(steps=15)
    a = first.aggregate(model, updates).state
    b = second.aggregate(model, [updates[i] for i in generator.permutation(count)]).state
    assert first.gammas == pytest.approx(second.gammas, abs=1e-6)
    for x, y in zip([a, *all_states(first, count)], [b, *all_states(second, count)], strict=True):
        for name in x:
            torch.testing.assert_close(x[name], y[name], rtol=1e-6, atol=1e-6)


def test_a_client_that_is_not_selected_keeps_what_it_had(generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    aggregator = FedDNA(steps=5)
    aggregator.aggregate(model, updates[:3])
    before = all_states(aggregator, 4)
    aggregator.aggregate(model, updates[1:3])
    after = all_states(aggregator, 4)
    assert identical(after[0], before[0])
    assert not identical(after[1], before[1])
    assert before[3] == after[3] == {}
    assert list(aggregator.gammas) == [1, 2]


def test_the_global_random_generators_are_neither_used_nor_changed(generator):
    model, updates = random_clients(4, 3, generator)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = FedDNA(steps=5), FedDNA(steps=5)
    first.aggregate(model, updates)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second.aggregate(model, updates)
    assert first.gammas == second.gammas


def test_no_grad_and_autocast_do_not_affect_the_networks(generator):
    model, updates = random_clients(4, 3, generator)
    plain, within = FedDNA(steps=5), FedDNA(steps=5)
    plain.aggregate(model, updates)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        within.aggregate(model, updates)
    assert plain.gammas == within.gammas


def test_a_layer_under_two_names_is_returned_under_both(generator):
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(norm, nn.Linear(3, 3), norm)
    updates = random_updates(model, 2, generator)
    aggregator = FedDNA(steps=1)
    state = aggregator.aggregate(model, updates).state
    for values in (state, aggregator.personal_state(0)):
        assert torch.equal(values["0.running_mean"], values["2.running_mean"])
        assert torch.equal(values["0.running_var"], values["2.running_var"])


def test_a_resumed_aggregator_continues_bit_for_bit(tmp_path, generator):
    model = ConvNet()
    rounds = [random_updates(model, 4, generator) for _ in range(4)]
    undisturbed, resumed = FedDNA(steps=15), FedDNA(steps=15)
    for updates in rounds[:2]:
        undisturbed.aggregate(model, updates)
    torch.save((undisturbed.state_dict(), undisturbed.memory.store.state_dict()), tmp_path / "state.pt")
    in_memory = undisturbed.state_dict()
    for updates in rounds[2:]:
        expected = undisturbed.aggregate(model, updates).state

    state, store = torch.load(tmp_path / "state.pt", weights_only=True)
    assert identical(in_memory["learned"], state["learned"])
    resumed.load_state_dict(state)
    resumed.memory.store.load_state_dict(store)
    for updates in rounds[2:]:
        result = resumed.aggregate(model, updates).state
    assert identical(result, expected)
    assert resumed.gammas == undisturbed.gammas
    assert all(map(identical, all_states(resumed, 4), all_states(undisturbed, 4)))


def test_the_networks_keep_learning_from_round_to_round(generator):
    model, updates = random_clients(4, 3, generator)
    aggregator = FedDNA(steps=5)
    states = []
    for _ in range(2):
        aggregator.aggregate(model, updates)
        states.append(aggregator.state_dict())
    assert not identical(states[0]["learned"], states[1]["learned"])


def test_loading_the_state_from_before_the_first_round_starts_over(generator):
    model, updates = random_clients(4, 3, generator)
    aggregator = FedDNA(steps=5)
    fresh = aggregator.state_dict()
    aggregator.aggregate(model, updates)
    first = aggregator.gammas
    aggregator.load_state_dict(fresh)
    aggregator.aggregate(model, updates)
    assert aggregator.gammas == first


def test_a_resumed_run_continues_bit_for_bit(tmp_path):
    def run(rounds, ckpt_path=None):
        torch.manual_seed(0)
        server = FederatedServer(FedDNA(steps=15))
        module, trainer = federate(Net(batch_norm=True), server=server, rounds=rounds, ckpt_path=ckpt_path)
        return dict(module.state_dict()), server.aggregator, trainer

    expected, undisturbed, _ = run(3)
    run(2)[2].save_checkpoint(tmp_path / "run.ckpt")
    state, resumed, _ = run(3, tmp_path / "run.ckpt")
    assert identical(state, expected)
    assert resumed.gammas == undisturbed.gammas
    assert all(map(identical, all_states(resumed, 4), all_states(undisturbed, 4)))


def test_clients_of_a_run_start_from_their_own_layer_norm():
    class Normalised(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers.insert(1, nn.LayerNorm(8))

    aggregator = FedDNA()
    module, _ = federate(Normalised(), server=FederatedServer(aggregator), rounds=2)
    personal = all_states(aggregator, 4)
    assert all(state.keys() == {"layers.1.weight", "layers.1.bias"} for state in personal)
    assert not identical(personal[0], personal[1])
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_layer_norm_is_left_to_fedavg_beside_batch_norm(generator):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3))
    updates = random_updates(model, 3, generator)
    state = FedDNA(steps=1).aggregate(model, updates).state
    expected = FedAvg().aggregate(model, updates).state
    assert torch.equal(state["1.weight"], expected["1.weight"])
    assert not torch.equal(state["0.running_var"], expected["0.running_var"])


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2)),
        nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)),
        nn.Sequential(nn.LayerNorm(2, bias=False)),
        nn.Sequential(nn.LayerNorm(2).requires_grad_(False)),
    ],
)
def test_a_model_without_statistics_is_refused(model):
    with pytest.raises(MisconfigurationError, match=r"FedDNA on Sequential, .*: use FedAvg, or a model") as error:
        FedDNA().prepare(model, Federation(num_clients=4, seed=0))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["steps", "latent", "hidden", "lr", "importance_lr"])
def test_arguments_that_prevent_learning_are_refused(name):
    with pytest.raises(MisconfigurationError, match=rf"^{name}=0, .*: set it above 0"):
        FedDNA(**{name: 0})
