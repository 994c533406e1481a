"""FedDyn against NumPy, over whole runs with partial participation."""

import numpy as np
import pytest

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg, FedDyn, Federation
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import RandomClients
from tests.aggregation.quadratics import CLIENTS, Quadratic, parabolas
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, federate, random_updates


def algorithm_1(cohorts: list[list[int]], clients: int, alpha: float, epochs: int, lr: float = 0.05) -> float:
    """Run the paper's algorithm 1 on the parabolas, with gradient descent as the clients' solver."""
    w, h, gradients = 0.0, 0.0, np.zeros(clients)
    for cohort in cohorts:
        trained = []
        for k in cohort:
            a, b = CLIENTS[k]
            theta = w
            for _ in range(epochs):
                theta -= lr * (a * (theta - b) - gradients[k] + alpha * (theta - w))
            gradients[k] -= alpha * (theta - w)
            trained.append(theta)
        h -= alpha * sum(theta - w for theta in trained) / clients
        w = np.mean(trained) - h / alpha
    return w


@pytest.mark.parametrize("count", [5, 2, 1])
def test_a_run_follows_the_papers_algorithm(count):
    server = FederatedServer(FedDyn(alpha=0.5), weighting="uniform", client=LocalTraining(epochs=4))
    selection = RandomClients(count=count)
    federated, trainer = federate(Quadratic(), parabolas(5), selection=selection, server=server, rounds=12)
    cohorts = [trainer.datamodule.cohort(number) for number in range(12)]
    assert federated.module.w.item() == pytest.approx(algorithm_1(cohorts, 5, alpha=0.5, epochs=4), rel=1e-9)


def test_it_reaches_the_optimum_that_fedavg_misses():
    def solve(aggregator) -> float:
        server = FederatedServer(aggregator, weighting="uniform", client=LocalTraining(epochs=10))
        federated, _ = federate(Quadratic(), parabolas(2), server=server, rounds=25)
        return federated.module.w.item()

    assert solve(FedDyn(alpha=2.0)) == pytest.approx(-0.8, abs=1e-3)
    assert abs(solve(FedAvg()) + 0.8) > 0.1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_servers_half_agrees_with_numpy(weighting, generator):
    model, aggregator, alpha = ConvNet(), FedDyn(alpha=0.1), 0.1
    aggregator.prepare(model, Federation(num_clients=8, seed=0))
    h = 0.0
    for size in (3, 1, 4):
        start = vector(model.state_dict(), PARAMETERS)
        updates = random_updates(model, size, generator)
        result = aggregator.aggregate(model, updates, weighting=weighting)
        trained = [vector(update.state, PARAMETERS) for update in updates]
        weights = [update.num_samples if weighting == "samples" else 1 for update in updates]
        h = h - alpha * sum(w - start for w in trained) / 8
        expected = np.average(trained, axis=0, weights=weights) - h / alpha
        np.testing.assert_allclose(vector(result.state, PARAMETERS), expected, rtol=1e-5, atol=1e-6)
        model.load_state_dict(result.state)


@pytest.mark.parametrize("alpha", [0, -1, float("nan")])
def test_an_alpha_that_cannot_be_divided_by_is_refused(alpha):
    with pytest.raises(MisconfigurationError, match=r"alpha=.*set alpha of FedDyn above 0"):
        FedDyn(alpha)
