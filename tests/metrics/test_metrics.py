"""Every metric agrees with NumPy over several rounds, on one process and on two, and obeys its laws."""

import copy
import math
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.metrics import (
    GradientDivergence,
    ParticipationCounts,
    StatisticsDivergence,
    UpdateAngles,
    UpdateNorms,
)
from tests.metrics import reference
from tests.toys import ConvNet, random_state

COHORTS = [[0, 1, 2, 3, 4], [1, 3, 5], [5], [2, 3, 4, 5]]


class Round:
    """A random round: the states in which the clients and the global model started and ended."""

    def __init__(self, model: nn.Module, clients: list[int], generator: np.random.Generator) -> None:
        self.clients = clients
        self.start, self.end = random_state(model, generator), random_state(model, generator)
        self.states = [random_state(model, generator) for _ in clients]
        self.weights = [int(n) for n in generator.integers(1, 500, size=len(clients))]
        self.rates = [float(rate) for rate in generator.uniform(0.01, 0.1, size=len(clients))]


def rounds() -> list[Round]:
    model, generator = ConvNet(), np.random.default_rng(3)
    return [Round(model, cohort, generator) for cohort in COHORTS]


def norms(rank: int, size: int) -> list[dict[str, float]]:
    metric = UpdateNorms(ConvNet())

    def one(round_: Round, mine: list[int]) -> None:
        for row in mine:
            metric.update(round_.start, round_.states[row], round_.weights[row])
        metric.moved(round_.start, round_.end)

    return run(metric, one, rank, size)


def angles(rank: int, size: int) -> list[dict[str, float]]:
    metric = UpdateAngles(ConvNet(), num_clients=6)

    def one(round_: Round, mine: list[int]) -> None:
        for row in mine:
            metric.update(round_.clients[row], round_.start, round_.states[row], round_.weights[row])

    return run(metric, one, rank, size)


def divergences(rank: int, size: int) -> list[dict[str, float]]:
    metric = GradientDivergence(ConvNet())

    def one(round_: Round, mine: list[int]) -> None:
        for row in mine:
            metric.update(round_.start, round_.states[row], round_.weights[row], round_.rates[row])

    return run(metric, one, rank, size)


def participation(rank: int, size: int) -> list[dict[str, float]]:
    metric = ParticipationCounts(num_clients=6)

    def one(round_: Round, mine: list[int]) -> None:
        for row in mine:
            metric.update(round_.clients[row])

    return run(metric, one, rank, size)


def statistics(rank: int, size: int) -> list[dict[str, float]]:
    model = ConvNet()
    metric = StatisticsDivergence(model, random_state(model, np.random.default_rng(8)))
    return run(metric, lambda round_, mine: metric.update(round_.end), rank, size)


def flat(values) -> dict[str, float]:
    """Return one number per name, with values by client as ``name/client``."""
    found = {}
    for name, value in values.items():
        each = (
            value if isinstance(value, dict) else dict(enumerate(value)) if getattr(value, "ndim", 0) else {None: value}
        )
        found |= {name if client is None else f"{name}/{client}": float(one) for client, one in each.items()}
    return found


def run(metric, one, rank: int, size: int) -> list[dict[str, float]]:
    """Run all rounds. A rank takes every ``size``-th client, so in a round with one client the other has none."""
    values = []
    for round_ in rounds():
        one(round_, list(range(len(round_.clients)))[rank::size])
        values.append(flat(metric.compute()))
        metric.next_round() if hasattr(metric, "next_round") else metric.reset()
    return values


METRICS = [norms, angles, divergences, participation, statistics]


def on_two_processes(rank: int, port: int, results) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results.put((rank, [measure(rank, 2) for measure in METRICS]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both_ranks() -> list[list[list[dict[str, float]]]]:
    """Return what each rank measures. The processes are forked, so that they need not import torch again."""
    from lightning_fabric.plugins.environments.lightning import find_free_network_port

    context = torch.multiprocessing.get_context("fork")
    results = context.Queue()
    port = find_free_network_port()
    processes = [context.Process(target=on_two_processes, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(2)]


@pytest.mark.parametrize("number", range(len(METRICS)), ids=[measure.__name__ for measure in METRICS])
def test_two_processes_compute_the_same_metrics_as_one(both_ranks, number):
    alone = METRICS[number](0, 1)
    for rank in range(2):
        for expected, found in zip(alone, both_ranks[rank][number], strict=True):
            assert found == pytest.approx(expected, rel=1e-9)


def test_norms_agree_with_numpy():
    model, integral = ConvNet(), {}
    for round_, found in zip(rounds(), norms(0, 1), strict=True):
        expected = reference.norms(model, round_.start, round_.states, round_.weights, round_.end)
        for group in reference.groups(model):
            integral[group] = integral.get(group, 0) + expected[f"{group}/move"]
            expected[f"{group}/integral"] = integral[group]
        assert found == pytest.approx(expected, rel=1e-6)


def test_angles_agree_with_numpy():
    model, history = ConvNet(), {}
    for round_, found in zip(rounds(), angles(0, 1), strict=True):
        theta = reference.angles(model, round_.start, round_.states, round_.weights)
        for client, angle in zip(round_.clients, theta, strict=True):
            history.setdefault(client, []).append(angle)
        smoothed = [np.mean(history[client]) for client in round_.clients]
        psi = reference.fedadp_weights(smoothed, round_.weights)
        expected = {}
        for row, client in enumerate(round_.clients):
            expected |= {
                f"angle/{client}": theta[row],
                f"smoothed/{client}": smoothed[row],
                f"weight/{client}": psi[row],
            }
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_gradient_divergence_agrees_with_numpy():
    model = ConvNet()
    for round_, found in zip(rounds(), divergences(0, 1), strict=True):
        g, each = reference.gradients(model, round_.start, round_.states, round_.weights, np.mean(round_.rates))
        expected = np.mean([np.linalg.norm(g - g_k) for g_k in each])
        assert found == {"gradient": pytest.approx(expected, rel=1e-6, abs=1e-4)}


def test_without_reported_learning_rates_the_divergence_of_the_updates_is_measured(generator):
    model = nn.Linear(2, 1, bias=False)
    metric = GradientDivergence(model)
    zero = {"weight": torch.zeros(1, 2)}
    metric.update(zero, {"weight": torch.tensor([[3.0, 4.0]])})
    metric.update(zero, {"weight": torch.tensor([[-3.0, -4.0]])})
    assert float(metric.compute()["gradient"]) == pytest.approx(5)


def test_statistics_divergence_agrees_with_numpy():
    model = ConvNet()
    other = random_state(model, np.random.default_rng(8))
    layers = {
        name: names for name, names in reference.groups(model).items() if name in ("conv", "norm", "hidden", "head")
    }
    for round_, found in zip(rounds(), statistics(0, 1), strict=True):
        channels = [
            (reference.vector(state, ["norm.running_mean"]), reference.vector(state, ["norm.running_var"]) + 1e-5)
            for state in (round_.end, other)
        ]
        fitted = 0.0
        for names in layers.values():
            here, there = reference.vector(round_.end, names), reference.vector(other, names)
            fitted += reference.kl(here.mean(), here.var() + 1e-5, there.mean(), there.var() + 1e-5)
        expected = {"statistics": reference.kl(*channels[0], *channels[1]), "parameters": fitted}
        assert found == pytest.approx(expected, rel=1e-6)


def test_layer_norms_bias_and_weight_are_statistics_and_not_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    here, there = (random_state(model, np.random.default_rng(seed)) for seed in (1, 2))
    here["1.weight"][0] = -0.5
    metric = StatisticsDivergence(model, there)
    metric.update(here)
    channels = [
        (reference.vector(state, ["1.bias"]), np.abs(reference.vector(state, ["1.weight"])) + 1e-5)
        for state in (here, there)
    ]
    fitted = 0.0
    for layer in ("0", "2"):
        one, other = (reference.vector(state, [f"{layer}.weight", f"{layer}.bias"]) for state in (here, there))
        fitted += reference.kl(one.mean(), one.var() + 1e-5, other.mean(), other.var() + 1e-5)
    expected = {"statistics": reference.kl(*channels[0], *channels[1]), "parameters": fitted}
    assert flat(metric.compute()) == pytest.approx(expected, rel=1e-6)


def test_a_model_does_not_diverge_from_itself(tmp_path):
    model = ConvNet()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "reference.ckpt")
    metric = StatisticsDivergence(model, tmp_path / "reference.ckpt")
    metric.update(model.state_dict())
    assert flat(metric.compute()) == {
        "statistics": 0,
        "parameters": 0,
    }


def test_without_running_statistics_there_is_only_the_divergence_of_parameters():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2))
    metric = StatisticsDivergence(model, model.state_dict())
    metric.update(model.state_dict())
    assert list(metric.compute()) == ["parameters"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"text", "is not a checkpoint"),
        ([1], "holds no model state"),
        ({"state_dict": {}}, "conv.weight is missing there"),
        ({"conv.weight": torch.zeros(1)}, r"conv.weight is of shape \(1,\) there and of shape \(3, 1, 3, 3\) here"),
    ],
)
def test_an_unusable_reference_is_refused_in_one_line(content, reason, tmp_path):
    path = tmp_path / "reference.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(MisconfigurationError, match=reason) as error:
        StatisticsDivergence(ConvNet(), path)
    assert "\n" not in str(error.value)


def test_participation_counts_rounds():
    *_, last = participation(0, 1)
    counts = [sum(client in cohort for cohort in COHORTS) for client in range(6)]
    assert last == {f"counts/{client}": n for client, n in enumerate(counts)} | {
        "least": min(counts),
        "most": max(counts),
        "clients": 6,
    }


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(-3, 3))
def test_n_is_at_most_e_and_scales_with_the_updates(seed, clients, scale):
    generator, model = np.random.default_rng(seed), ConvNet()
    start = random_state(model, generator)
    plain, scaled = UpdateNorms(model), UpdateNorms(model)
    for _ in range(clients):
        state, weight = random_state(model, generator), float(generator.uniform(0.1, 5))
        plain.update(start, state, weight)
        further = {
            name: (value.double() + scale * (state[name].double() - value.double())) for name, value in start.items()
        }
        scaled.update(start, further, weight)
    values, others = plain.compute(), scaled.compute()
    for tag, value in values.items():
        if tag.endswith("/N_over_E"):
            assert 0 <= value <= 1 + 1e-9
        else:
            assert others[tag] == pytest.approx(abs(scale) * float(value), rel=1e-5, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_the_norm_of_a_kind_combines_the_norms_of_its_layers(seed, clients):
    generator, model = np.random.default_rng(seed), ConvNet()
    start, metric = random_state(model, generator), UpdateNorms(model)
    for _ in range(clients):
        metric.update(start, random_state(model, generator))
    n = {tag.split("/")[0]: float(value) for tag, value in metric.compute().items() if tag.endswith("/N")}
    assert n["fully_connected"] == pytest.approx(math.hypot(n["hidden"], n["head"]))
    assert n["all"] == pytest.approx(math.hypot(n["convolution"], n["fully_connected"], n["normalisation"]))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(5)))
def test_the_order_of_clients_does_not_matter(order):
    round_ = rounds()[0]
    metric = UpdateAngles(ConvNet(), num_clients=6)
    for row in order:
        metric.update(round_.clients[row], round_.start, round_.states[row], round_.weights[row])
    found = flat(metric.compute())
    assert found == pytest.approx(angles(0, 1)[0], rel=1e-9)


def test_clients_that_agree_have_ratio_one_and_clients_that_cancel_out_have_zero():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    metric = UpdateNorms(model)
    start = {f"{layer}.weight": torch.zeros(1, 1) for layer in range(3)}
    for sign in (1.0, -1.0):
        metric.update(
            start, {"0.weight": torch.ones(1, 1), "1.weight": sign * torch.ones(1, 1), "2.weight": torch.zeros(1, 1)}
        )
    values = metric.compute()
    assert [float(values[f"{layer}/N_over_E"]) for layer in range(3)] == [1, 0, 1]


def test_reset_forgets_earlier_rounds_but_next_round_does_not():
    model = nn.Linear(2, 1, bias=False)
    zero, one = {"weight": torch.zeros(1, 2)}, {"weight": torch.ones(1, 2)}
    metric, integrals = UpdateNorms(model), []
    for begin in (metric.next_round, metric.reset, metric.reset):
        metric.update(zero, one)
        metric.moved(zero, one)
        integrals.append(float(metric.compute()["all/integral"]))
        begin()
    assert integrals == pytest.approx([2**0.5, 2 * 2**0.5, 2**0.5])


def test_parameters_of_the_model_itself_form_the_layer_root():
    model = nn.Linear(2, 1)
    metric = UpdateNorms(model)
    metric.update(model.state_dict(), model.state_dict())
    assert set(metric.compute()) == {
        f"{layer}/{quantity}" for layer in ("root", "fully_connected", "all") for quantity in ("N", "E", "N_over_E")
    }


def test_sixteen_bit_updates_are_measured_exactly():
    model = nn.Linear(2, 1, bias=False).bfloat16()
    start = {"weight": torch.tensor([[1.0, 256.0]], dtype=torch.bfloat16)}
    state = {"weight": torch.tensor([[1.0078125, 1.0078125]], dtype=torch.bfloat16)}
    metric = UpdateNorms(model)
    metric.update(start, state)
    assert float(metric.compute()["all/N"]) == pytest.approx(math.hypot(0.0078125, 256 - 1.0078125), rel=1e-7)


@pytest.mark.parametrize("make", [lambda: UpdateNorms(ConvNet()), lambda: UpdateAngles(ConvNet(), 6)])
def test_values_that_carry_over_survive_a_checkpoint_of_the_metric(make):
    first, *later = rounds()

    def one(metric, round_: Round) -> dict[str, float]:
        for row, client in enumerate(round_.clients):
            number = () if isinstance(metric, UpdateNorms) else (client,)
            metric.update(*number, round_.start, round_.states[row], round_.weights[row])
        if isinstance(metric, UpdateNorms):
            metric.moved(round_.start, round_.end)
        values = flat(metric.compute())
        metric.next_round()
        return values

    whole, resumed = make(), make()
    one(whole, first)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert [one(resumed, round_) for round_ in later] == [one(whole, round_) for round_ in later]
