"""DP-FedAvg: its formula, the law of clipping, its noise, and ε against the accountant and against a formula."""

import importlib.util
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from fl_lightning import LocalTraining
from fl_lightning.aggregation import DPFedAvg, FedAvg, Federation
from fl_lightning.aggregation.accounting import PrivacyAccountant
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, AllClients, PoissonClients, RandomClients, SequentialClients
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, Net, federate, identical, random_updates

needs_accountant = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting (extra privacy) is not installed"
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ConvNet()


def test_without_noise_it_is_the_mean_of_clipped_updates_whatever_the_weights(model, generator):
    updates = random_updates(model, 5, generator)
    start = vector(model.state_dict(), PARAMETERS)
    moves = [vector(update.state, PARAMETERS) - start for update in updates]
    clipped = [move / max(1.0, np.sqrt((move**2).sum()) / 2.0) for move in moves]
    result = DPFedAvg(2.0, 0.0).aggregate(model, updates, weighting="samples").state
    np.testing.assert_allclose(vector(result, PARAMETERS), start + np.mean(clipped, axis=0), rtol=1e-5, atol=1e-6)


def test_nothing_but_parameters_is_released(model, generator):
    updates = random_updates(model, 5, generator)
    result = DPFedAvg(2.0, 0.0).aggregate(model, updates).state
    others = {name: value for name, value in model.state_dict().items() if name not in PARAMETERS}
    assert others.keys() >= {"frozen", "flag", "norm.running_mean", "norm.num_batches_tracked"}
    assert identical({name: result[name] for name in others}, others)


def summed(aggregator, model, updates) -> np.ndarray:
    """Return the sum of the clipped updates, before noise, as the aggregator has it."""
    aggregator.aggregate(model, updates)
    return aggregator.sums["parameters"].numpy()


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 6), power=st.floats(-3, 6), max_norm=st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_one_client_more_changes_the_sum_by_at_most_the_threshold_and_another_client_by_twice_that(
    seed, clients, power, max_norm
):
    torch.manual_seed(0)
    model, generator = ConvNet(), np.random.default_rng(seed)
    updates = random_updates(model, clients + 1, generator)
    for update in updates[-2:]:
        update.state = {
            name: value * 10**power if name in PARAMETERS else value for name, value in update.state.items()
        }
    aggregator = DPFedAvg(max_norm, 0.0)
    with_one, without, with_other = (
        summed(aggregator, model, each) for each in (updates[:-1], updates[:-2], [*updates[:-2], updates[-1]])
    )
    assert np.linalg.norm(with_one - without) <= max_norm * (1 + 1e-9)
    assert np.linalg.norm(with_one - with_other) <= 2 * max_norm * (1 + 1e-9)


def test_the_noise_has_the_standard_deviation_of_the_paper_and_follows_from_seed_and_round(generator):
    model = torch.nn.Linear(200, 100)
    updates = random_updates(model, 4, generator)
    names = ["weight", "bias"]
    plain = vector(DPFedAvg(2.0, 0.0).aggregate(model, updates).state, names)
    first, again, later = (
        vector(DPFedAvg(2.0, 1.5).aggregate(model, updates, round=number).state, names) - plain for number in (3, 3, 4)
    )
    assert first.std() == pytest.approx(1.5 * 2.0 / 4, rel=0.02)  # z S / m
    assert abs(first.mean()) < 5 * 0.75 / math.sqrt(len(first))
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, later)[0, 1]) < 0.05


def private(selection, noise=0.7, weighting="uniform", module=None, **options):
    torch.manual_seed(0)
    aggregator = DPFedAvg(0.5, noise, delta=1e-3)
    server = FederatedServer(aggregator, weighting=weighting, client=options.pop("client", LocalTraining()))
    federated, trainer = federate(module or Net(), partition=IID(6), selection=selection, server=server, **options)
    return dict(federated.state_dict()), trainer


SELECTIONS = {"Poisson": PoissonClients(0.3), "fixed size": RandomClients(count=2), "all": AllClients()}


@needs_accountant
@pytest.mark.spread(3)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_resumed_run_ends_like_an_undisturbed_one_with_the_same_epsilon(selection, tmp_path):
    whole, whole_trainer = private(SELECTIONS[selection], rounds=4)
    _, begun = private(SELECTIONS[selection], rounds=2)
    begun.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, trainer = private(SELECTIONS[selection], rounds=4, ckpt_path=tmp_path / "begun.ckpt")
    assert identical(whole, resumed)
    epsilon = trainer.callback_metrics["privacy/epsilon"]
    assert epsilon == whole_trainer.callback_metrics["privacy/epsilon"] > begun.callback_metrics["privacy/epsilon"]


@needs_accountant
def test_two_processes_give_the_result_of_one():
    one, _ = private(PoissonClients(0.3), rounds=3, devices=1)
    two, _ = private(PoissonClients(0.3), rounds=3, devices=2, strategy="ddp_fork")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_a_round_without_clients_changes_the_model_only_by_noise(execution):
    selection = PoissonClients(1e-9)
    torch.manual_seed(0)
    start = {name: value.clone() for name, value in Net().state_dict().items()}
    state, trainer = private(selection, noise=0.0, client=LocalTraining(execution=execution))
    assert trainer.current_epoch == 2
    assert identical({name.removeprefix("module."): value for name, value in state.items()}, start)
    assert trainer.callback_metrics["round/clients"] == 0


def test_the_mean_is_over_the_expected_number_of_clients():
    """Whoever takes part, the sum is divided by q K, so that the divisor reveals nothing."""
    aggregator = DPFedAvg(0.5, 0.0)
    model = Net()
    aggregator.prepare(model, Federation(10, 0, "uniform", selection=PoissonClients(0.3)))
    updates = random_updates(model, 5, np.random.default_rng(0))
    names = [name for name, _ in model.named_parameters()]
    start = vector(model.state_dict(), names)
    result = vector(aggregator.aggregate(model, updates).state, names)
    np.testing.assert_allclose(3.0 * (result - start), aggregator.sums["parameters"].numpy(), rtol=1e-4, atol=1e-5)


def epsilon(selection, noise: float, rounds: int, delta: float = 1e-5, clients: int = 1000) -> float:
    return PrivacyAccountant(Federation(clients, 0, "uniform", selection=selection), noise, delta).epsilon(rounds)


@needs_accountant
@pytest.mark.spread(2)
@pytest.mark.parametrize("rounds", [1, 50])
@pytest.mark.parametrize("noise", [0.8, 3.0])
def test_epsilon_is_the_accountants_own(noise, rounds):
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relations = dp_accounting.NeighboringRelation
    poisson = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(noise))
    expected = RdpAccountant(None, relations.ADD_OR_REMOVE_ONE).compose(poisson, rounds).get_epsilon(1e-5)
    assert epsilon(PoissonClients(0.02), noise, rounds) == pytest.approx(expected, rel=0.03)  # we use other orders
    # replacing a client moves a sum of vectors of length S by up to 2 S, so that the noise is half as large in relation
    fixed = dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, dp_accounting.GaussianDpEvent(noise / 2))
    expected = RdpAccountant(None, relations.REPLACE_ONE).compose(fixed, rounds).get_epsilon(1e-5)
    assert epsilon(RandomClients(count=20), noise, rounds) == pytest.approx(expected, rel=0.03)


@needs_accountant
@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (10.0, 20)])
def test_epsilon_without_sampling_agrees_with_the_formula_for_gaussian_noise(noise, rounds):
    """T Gaussian mechanisms have Rényi divergence T α / (2 σ²), and ε follows by Canonne, Kamath and Steinke's rule."""
    delta, sigma = 1e-5, noise / 2

    def bound(alpha: float) -> float:
        divergence = rounds * alpha / (2 * sigma**2)
        return divergence + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)

    best = minimize_scalar(bound, bounds=(1.0001, 256), method="bounded").fun
    found = epsilon(AllClients(), noise, rounds, delta)
    assert best * (1 - 1e-9) <= found <= 1.03 * best
    # the exact ε of one Gaussian mechanism (Balle and Wang 2018, theorem 8) is smaller, and not by much
    if rounds == 1:
        from scipy.stats import norm

        exact_delta = norm.cdf(1 / (2 * sigma) - found * sigma) - math.exp(found) * norm.cdf(
            -1 / (2 * sigma) - found * sigma
        )
        assert 0 < exact_delta <= delta


@needs_accountant
def test_sampling_and_noise_reduce_epsilon_and_rounds_increase_it():
    base = epsilon(PoissonClients(0.1), 1.0, 10)
    assert epsilon(PoissonClients(0.05), 1.0, 10) < base
    assert epsilon(PoissonClients(0.1), 1.5, 10) < base
    assert epsilon(PoissonClients(0.1), 1.0, 20) > base


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": AllClients(), "weighting": "samples"}, "weighting=samples.*set server.weighting to uniform"),
        (
            {"selection": SequentialClients(count=2)},
            "selection=SequentialClients.*set data.selection to PoissonClients",
        ),
        ({"selection": AllClients(), "module": Net(batch_norm=True)}, "running_mean.*GroupNorm instead of BatchNorm"),
    ],
)
def test_what_would_break_the_guarantee_is_refused(options, message):
    with pytest.raises(MisconfigurationError, match=message):
        private(noise=0.0, **options)


def test_a_missing_accountant_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        MisconfigurationError, match=r"pip install 'fl_lightning\[privacy\]', or set noise_multiplier to 0"
    ):
        private(AllClients())
    private(AllClients(), noise=0.0, rounds=1)


def test_an_aggregator_that_needs_clients_refuses_a_selection_that_may_have_none():
    with pytest.raises(MisconfigurationError, match="PoissonClients may select no client at all, which leaves FedAvg"):
        federate(selection=PoissonClients(0.5), server=FederatedServer(FedAvg()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPFedAvg(0.0, 1.0), "max_norm=0.0.*DPFedAvg"),
        (lambda: DPFedAvg(1.0, -1.0), "noise_multiplier=-1.0"),
        (lambda: DPFedAvg(1.0, math.nan), "noise_multiplier=nan"),
        (lambda: DPFedAvg(1.0, 1e30), r"noise_multiplier=1e\+30: set noise_multiplier of DPFedAvg in \[0, 1000000.0\]"),
        (lambda: DPFedAvg(1.0, 1e-300), "noise_multiplier=1e-300, but ε is divided by it: set .* above 0"),
        (lambda: DPFedAvg(1.0, 1.0, 0.0), "delta=0.0"),
        (lambda: DPFedAvg(1.0, 1.0, math.nan), "delta=nan"),
        (lambda: PoissonClients(0.0), "rate=0.0"),
        (lambda: PoissonClients(math.nan), "rate=nan"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_poisson_selection_takes_each_client_with_the_same_probability_and_independently():
    cohorts = [PoissonClients(0.3).cohort(10, 0, number) for number in range(2000)]
    taken = np.array([[client in cohort for client in range(10)] for cohort in cohorts])
    assert np.abs(taken.sum(axis=0) - 600).max() < 5 * 20.5  # binomial(2000, 0.3)
    assert np.var([len(cohort) for cohort in cohorts]) == pytest.approx(10 * 0.3 * 0.7, rel=0.15)
    assert PoissonClients(1.0).cohort(10, 0, 0) == list(range(10))
