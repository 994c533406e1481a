"""The robust aggregators against NumPy in float64, written from their papers, and the bounds that they guarantee."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import (
    CoordinateMedian,
    FedAvg,
    Federation,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    robust,
)
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, RandomClients
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, federate, identical, random_state, random_updates

STATISTICS = ["norm.running_mean", "norm.running_var"]
#: what the robust aggregators compare: parameters and statistics
NAMES = [*PARAMETERS, *STATISTICS]


def matrix(updates: list[ClientUpdate], names=NAMES) -> np.ndarray:
    """Return the clients' models as rows."""
    return np.stack([vector(update.state, names) for update in updates])


def aggregated(aggregator, updates, names=NAMES, weighting="samples") -> np.ndarray:
    return vector(aggregator.aggregate(ConvNet(), updates, weighting=weighting).state, names)


def papers_krum(rows: np.ndarray, f: int, m: int) -> np.ndarray:
    """Average the m rows with the smallest sums of squared distances to their n - f - 2 nearest rows."""
    n = len(rows)
    scores = []
    for i in range(n):
        distances = sorted(((rows[i] - rows[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    best = sorted(range(n), key=lambda i: scores[i])[:m]
    return rows[best].mean(axis=0)


def papers_weiszfeld(rows: np.ndarray, alphas: np.ndarray, nu: float, iterations: int) -> np.ndarray:
    """Run algorithm 2 of Pillutla et al. from the weighted mean."""
    v = alphas @ rows / alphas.sum()
    for _ in range(iterations):
        betas = [alpha / max(nu, math.sqrt(((v - row) ** 2).sum())) for alpha, row in zip(alphas, rows, strict=True)]
        v = np.array(betas) @ rows / sum(betas)
    return v


@pytest.mark.parametrize("clients", [1, 2, 7, 8])
def test_the_median_agrees_with_numpy(clients, generator):
    updates = random_updates(ConvNet(), clients, generator)
    expected = np.median(matrix(updates), axis=0)
    np.testing.assert_allclose(aggregated(CoordinateMedian(), updates), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("clients", "fraction", "cut"), [(2, 0.4, 0), (10, 0.1, 1), (10, 0.3, 3), (7, 0.45, 3)])
def test_the_trimmed_mean_leaves_out_the_papers_share_at_each_end(clients, fraction, cut, generator):
    updates = random_updates(ConvNet(), clients, generator)
    kept = np.sort(matrix(updates), axis=0)[cut : clients - cut]
    result = TrimmedMean(fraction).aggregate(ConvNet(), updates)
    np.testing.assert_allclose(vector(result.state, NAMES), kept.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert result.metrics == {"trimmed_mean/left_out": 2 * cut}


def test_a_share_is_not_a_client_short_because_of_rounding():
    assert int(0.29 * 100) == 28
    assert robust.share_of(0.29, 100) == 29


@pytest.mark.parametrize(("clients", "fraction", "f"), [(7, 0.2, 1), (10, 0.3, 3), (5, 0.0, 0)])
def test_krum_and_multi_krum_agree_with_the_paper(clients, fraction, f, generator):
    updates = random_updates(ConvNet(), clients, generator)
    rows = matrix(updates)
    for aggregator, m in ((Krum(fraction), 1), (MultiKrum(fraction), clients - f)):
        expected = papers_krum(rows, f, m)
        np.testing.assert_allclose(aggregated(aggregator, updates), expected, rtol=1e-5, atol=1e-6)
        assert len(aggregator.chosen) == m


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_the_geometric_median_follows_the_papers_algorithm(weighting, iterations, generator):
    updates = random_updates(ConvNet(), 6, generator)
    alphas = np.array([update.num_samples if weighting == "samples" else 1.0 for update in updates])
    expected = papers_weiszfeld(matrix(updates), alphas / alphas.sum(), 1e-6, iterations)
    found = aggregated(GeometricMedian(iterations), updates, weighting=weighting)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_geometric_median_minimises_the_weighted_sum_of_distances(generator):
    updates = random_updates(ConvNet(), 6, generator)
    rows, alphas = matrix(updates), np.array([update.num_samples for update in updates])

    def objective(point: np.ndarray) -> float:
        return alphas @ np.linalg.norm(rows - point, axis=1)

    median = aggregated(GeometricMedian(iterations=500), updates)
    for _ in range(20):
        assert objective(median) < objective(median + 0.01 * generator.normal(size=median.shape))


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 1e6])
@pytest.mark.parametrize("names", [PARAMETERS, STATISTICS])
def test_norm_clipping_agrees_with_the_paper(max_norm, names, generator):
    model = ConvNet()
    updates = random_updates(model, 5, generator)
    start = vector(model.state_dict(), names)
    p = np.array([update.num_samples for update in updates], dtype=float)
    moves = matrix(updates, names) - start
    lengths = np.sqrt((moves**2).sum(axis=1))
    expected = start + p / p.sum() @ (moves / np.maximum(1, lengths / max_norm)[:, None])
    found = vector(NormClipping(max_norm).aggregate(model, updates).state, names)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_threshold_that_no_update_reaches_is_fedavg(generator):
    model = ConvNet()
    updates = random_updates(model, 5, generator)
    clipped, plain = (vector(each.aggregate(model, updates).state, NAMES) for each in (NormClipping(1e6), FedAvg()))
    np.testing.assert_allclose(clipped, plain, rtol=1e-6, atol=1e-7)


def with_bad_clients(seed: int, clients: int, bad: int, scale: float) -> tuple[list[ClientUpdate], list[ClientUpdate]]:
    """Return all updates, and the good ones. The others are ``scale`` times as far out, in a common direction."""
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, clients, generator)
    order = generator.permutation(clients)
    common = random_state(model, generator)
    for place in order[:bad]:
        own = updates[place].state
        updates[place].state = own | {name: scale * common[name] + 0.01 * own[name] for name in NAMES}
    return updates, [updates[place] for place in order[bad:]]


attacks = given(
    seed=st.integers(0, 2**32 - 1), clients=st.integers(3, 12), share=st.floats(0, 0.999), power=st.floats(-3, 6)
)


@attacks
@settings(max_examples=30, deadline=None)
def test_less_than_half_of_the_clients_cannot_move_a_median_or_a_trimmed_mean_out_of_the_range_of_the_others(
    seed, clients, share, power
):
    bad = int(share * ((clients + 1) // 2))
    updates, good = with_bad_clients(seed, clients, bad, 10**power)
    low, high = matrix(good).min(axis=0), matrix(good).max(axis=0)
    fraction = bad / clients
    for aggregator in (CoordinateMedian(), TrimmedMean(fraction)):
        result = aggregated(aggregator, updates)
        assert (result >= low - 1e-5).all()
        assert (result <= high + 1e-5).all()


@attacks
@settings(max_examples=30, deadline=None)
def test_what_krum_chooses_is_no_further_from_a_good_client_than_good_clients_are_from_each_other(
    seed, clients, share, power
):
    bad = int(share * ((clients - 1) // 2))  # 2f + 2 < n
    updates, good = with_bad_clients(seed, clients, bad, 10**power)
    rows = matrix(good)
    diameter = max(np.linalg.norm(one - two) for one in rows for two in rows)
    # A good client's score is at most (n - f - 2) D², and one of the chosen client's n - f - 2 neighbours is good.
    bound = math.sqrt(max(clients - bad - 2, 1)) * diameter
    chosen = aggregated(Krum(bad / clients), updates)
    assert min(np.linalg.norm(rows - chosen, axis=1)) <= bound * (1 + 1e-5)
    mean = aggregated(MultiKrum(bad / clients), updates)  # the same holds for each client of this mean
    assert max(np.linalg.norm(rows - mean, axis=1)) <= (bound + diameter) * (1 + 1e-5)


@attacks
@settings(max_examples=15, deadline=None)
def test_the_geometric_median_stays_within_the_papers_distance_of_good_clients(seed, clients, share, power):
    bad = int(share * clients * 0.45)
    updates, good = with_bad_clients(seed, clients, bad, 10 ** min(power, 4))
    rows, theta = matrix(good), bad / clients
    centre = rows.mean(axis=0)
    # Lopuhaä and Rousseeuw's bound, which Pillutla et al. cite: breakdown only at one half
    bound = 2 * (1 - theta) / (1 - 2 * theta) * max(np.linalg.norm(rows - centre, axis=1))
    median = aggregated(GeometricMedian(iterations=200), updates, weighting="uniform")
    assert np.linalg.norm(median - centre) <= bound * (1 + 1e-4)


@attacks
@settings(max_examples=15, deadline=None)
def test_a_client_moves_the_clipped_mean_by_at_most_its_share_of_the_threshold(seed, clients, share, power):
    updates, good = with_bad_clients(seed, clients, 1, 10**power)
    model = ConvNet()
    for names in (PARAMETERS, STATISTICS):
        all_, rest = (
            vector(NormClipping(2.0).aggregate(model, each, weighting="uniform").state, names)
            for each in (updates, good)
        )
        start = vector(model.state_dict(), names)
        moved = clients * (all_ - start) - (clients - 1) * (rest - start)  # what the bad client added to the sum
        assert np.linalg.norm(moved) <= 2.0 + 1e-3


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("aggregator", [CoordinateMedian(), TrimmedMean(0.2), Krum(0.2), MultiKrum(0.2)])
def test_a_client_that_is_not_finite_is_an_outlier_like_any_other(aggregator, value, generator):
    updates = random_updates(ConvNet(), 6, generator)
    updates[2].state = updates[2].state | {name: torch.full_like(updates[2].state[name], value) for name in NAMES}
    assert np.isfinite(aggregated(aggregator, updates)).all()


@pytest.mark.parametrize("aggregator", [CoordinateMedian(), TrimmedMean(0.3), Krum(), MultiKrum()])
def test_the_size_of_a_block_changes_nothing(aggregator, generator, monkeypatch):
    updates = random_updates(ConvNet(), 6, generator)
    whole = aggregator.aggregate(ConvNet(), updates).state
    monkeypatch.setattr(robust, "_BLOCK", 30)
    small = aggregator.aggregate(ConvNet(), updates).state
    assert all(torch.allclose(whole[name], small[name], rtol=1e-6) for name in NAMES)


@pytest.mark.parametrize("aggregator", [CoordinateMedian, TrimmedMean, Krum, MultiKrum])
def test_the_number_of_samples_that_a_client_claims_does_not_matter(aggregator, generator):
    updates = random_updates(ConvNet(), 6, generator)
    first = aggregator().aggregate(ConvNet(), updates).state
    updates[0].num_samples = 10**9
    second = aggregator().aggregate(ConvNet(), updates).state
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_identical_clients_and_one_bad_one_give_the_identical_model(generator):
    model = ConvNet()
    state = random_state(model, generator)
    updates = [ClientUpdate(client, state, 10) for client in range(5)]
    updates.append(ClientUpdate(5, random_state(model, generator), 10))
    for aggregator in (CoordinateMedian(), TrimmedMean(0.2), Krum(0.2), MultiKrum(0.2)):
        result = aggregator.aggregate(model, updates).state
        assert identical({name: result[name] for name in NAMES}, {name: state[name] for name in NAMES})


@pytest.mark.parametrize("aggregator", [TrimmedMean, Krum, MultiKrum])
@pytest.mark.parametrize("fraction", [-0.1, 0.5, math.nan])
def test_a_fraction_that_leaves_no_majority_is_refused(aggregator, fraction):
    with pytest.raises(MisconfigurationError, match=rf"fraction={fraction}.*{aggregator.__name__} in \[0, 0.5\)"):
        aggregator(fraction)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NormClipping(0.0), "max_norm=0.0"),
        (lambda: NormClipping(math.nan), "max_norm=nan"),
        (lambda: NormClipping(math.inf), "max_norm=inf"),
        (lambda: GeometricMedian(-1), "iterations=-1"),
        (lambda: GeometricMedian(3, 0.0), "smoothing=0.0"),
        (lambda: GeometricMedian(3, math.nan), "smoothing=nan"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_krum_with_too_many_bad_clients_for_a_round_is_refused_before_training():
    server = FederatedServer(Krum(fraction=0.4))
    with pytest.raises(MisconfigurationError) as error:
        federate(partition=IID(12), selection=RandomClients(count=6), server=server)
    assert str(error.value) == (
        "fraction=0.4 means that f=2 of 6 clients in a round may be bad, but Krum needs 2f + 2 < 6:"
        " set fraction of Krum to 0.167 or less, or select more clients"
    )


#: close to the largest number in float32
HUGE = 3e38


def with_huge_clients(clients: int, bad: int, generator) -> tuple[list[ClientUpdate], list[ClientUpdate]]:
    """Return all updates, and the good ones. The others hold nothing but the largest numbers, of both signs."""
    model = ConvNet()
    updates = random_updates(model, clients, generator)
    for number, update in enumerate(updates):
        update.state = update.state | {"frozen": model.frozen.detach(), "flag": model.flag}
        if number < bad:
            signs = {
                name: torch.tensor(generator.choice([-1.0, 1.0], size=tuple(model.state_dict()[name].shape)))
                for name in NAMES
            }
            update.state = update.state | {name: (HUGE * sign).float() for name, sign in signs.items()}
    return updates, updates[bad:]


@pytest.mark.parametrize(("clients", "bad"), [(4, 1), (5, 1), (10, 3)])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_largest_numbers_that_clients_can_send_do_no_harm(clients, bad, weighting, generator):
    updates, good = with_huge_clients(clients, bad, generator)
    for update in updates:
        update.num_samples = 10
    rows, low, high = matrix(updates), matrix(good).min(axis=0), matrix(good).max(axis=0)
    ordered = np.sort(rows, axis=0)
    expected = {
        CoordinateMedian(): np.median(rows, axis=0),
        TrimmedMean(bad / clients): ordered[bad : clients - bad].mean(axis=0),
    }
    if clients > 4:  # Krum needs 2f + 2 < n
        expected[Krum(bad / clients)] = papers_krum(rows, bad, 1)
        expected[MultiKrum(bad / clients)] = papers_krum(rows, bad, clients - bad)
    for aggregator, value in expected.items():
        found = aggregated(aggregator, updates, weighting=weighting)
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
        assert ((found >= low - 1e-5) & (found <= high + 1e-5)).all()
    centre, theta = matrix(good).mean(axis=0), bad / clients
    bound = 2 * (1 - theta) / (1 - 2 * theta) * max(np.linalg.norm(matrix(good) - centre, axis=1))
    found = aggregated(GeometricMedian(), updates, weighting=weighting)
    assert np.linalg.norm(found - centre) <= bound


def test_the_geometric_median_with_an_update_that_is_far_too_long_starts_at_the_coordinate_wise_median(generator):
    updates, _ = with_huge_clients(6, 1, generator)
    rows, alphas = matrix(updates), np.full(6, 1 / 6)
    v = np.median(rows, axis=0)
    for _ in range(3):
        betas = alphas / np.maximum(1e-6, np.sqrt(((v - rows) ** 2).sum(axis=1)))
        v = betas @ rows / betas.sum()
    np.testing.assert_allclose(aggregated(GeometricMedian(), updates, weighting="uniform"), v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("aggregator", "clients"), [(TrimmedMean(0.2), 3), (MultiKrum(0.2), 4), (Krum(0.1), 9)])
def test_a_fraction_that_is_less_than_one_client_causes_a_warning(aggregator, clients):
    selection = RandomClients(count=clients)
    least = {3: 0.334, 4: 0.2, 9: 0.112}[clients]
    with pytest.warns(
        UserWarning, match=rf"of {clients} clients per round is less than one client.* to {least} or more"
    ):
        aggregator.prepare(ConvNet(), Federation(20, 0, selection=selection))
    assert robust.share_of(least, 5 if clients == 4 else clients) == 1
