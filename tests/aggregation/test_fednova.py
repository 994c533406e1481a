"""FedNova against NumPy, over whole runs of clients with different numbers of steps."""

import numpy as np
import pytest
import torch

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg, FedNova
from fl_lightning.callbacks import FederatedServer, LearningRateDecay
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import RandomClients
from tests.aggregation.quadratics import CLIENTS, Quadratic, parabolas
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, Net, federate, random_updates

SAMPLES = (1, 7, 2, 12, 4)


def papers_rule(cohorts, epochs: int, lr: float, momentum: float) -> float:
    """Run section 4 on the parabolas with batch size 1: the mean of Δ_k / ‖a_k‖₁, times τ_eff = Σ p_k ‖a_k‖₁."""
    w = 0.0
    for cohort in cohorts:
        p = np.array([SAMPLES[k] for k in cohort]) / sum(SAMPLES[k] for k in cohort)
        directions, lengths = [], []
        for k in cohort:
            (a, b), tau = CLIENTS[k], SAMPLES[k] * epochs
            local, velocity = w, 0.0
            for _ in range(tau):
                velocity = momentum * velocity + a * (local - b)
                local -= lr * velocity
            # a_k = (1 - ρ^τ, ..., 1 - ρ) / (1 - ρ), below the paper's eq. 6
            length = sum((1 - momentum ** (tau - i)) / (1 - momentum) for i in range(tau))
            directions.append((local - w) / length)
            lengths.append(length)
        w += p @ lengths * (p @ directions)
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("count", [5, 2])
def test_a_run_follows_the_papers_rule(momentum, count):
    module = Quadratic(lr=0.01, momentum=momentum)
    server = FederatedServer(FedNova(), client=LocalTraining(epochs=2, batch_size=1))
    source, selection = parabolas(5, SAMPLES), RandomClients(count=count)
    federated, trainer = federate(module, source, selection=selection, server=server, rounds=6)
    cohorts = [trainer.datamodule.cohort(number) for number in range(6)]
    assert federated.module.w.item() == pytest.approx(papers_rule(cohorts, 2, 0.01, momentum), rel=1e-9)


def test_clients_with_the_same_number_of_steps_are_averaged():
    def solve(aggregator) -> float:
        server = FederatedServer(aggregator, client=LocalTraining(epochs=3, callbacks=[LearningRateDecay(0.9)]))
        federated, _ = federate(Quadratic(), parabolas(5), server=server, rounds=4)
        return federated.module.w.item()

    assert solve(FedNova()) == pytest.approx(solve(FedAvg()), rel=1e-12)


def test_the_servers_half_agrees_with_numpy(generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    for update in updates:
        update.num_steps = int(generator.integers(1, 50))
        update.learning_rate = float(generator.uniform(0.01, 0.2))
    start = vector(model.state_dict(), PARAMETERS)
    p = np.array([update.num_samples for update in updates], dtype=float)
    p /= p.sum()
    reach = np.array([update.num_steps * update.learning_rate for update in updates])
    moves = np.stack([vector(update.state, PARAMETERS) - start for update in updates])
    expected = start + (p @ reach) * (p @ (moves / reach[:, None]))
    result = FedNova().aggregate(model, updates)
    np.testing.assert_allclose(vector(result.state, PARAMETERS), expected, rtol=1e-5, atol=1e-6)


def test_clients_with_an_optimiser_other_than_sgd_are_refused():
    class Adam(Net):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    with pytest.raises(MisconfigurationError, match=r"FedNova .*Adam does not allow: use one torch\.optim\.SGD"):
        federate(Adam(), server=FederatedServer(FedNova()), rounds=1)
