"""SCAFFOLD against NumPy, and on two quadratics that FedAvg misses."""

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.aggregation import FedAvg, Scaffold
from fl_lightning.callbacks import FederatedServer, LearningRateDecay
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, Net, federate, random_updates


class Quadratic(LightningModule):
    """f_k(w) = a_k/2 (w - b_k)²; a sample is (a, b)."""

    def __init__(self, momentum: float = 0.0, lr: float = 0.05) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.momentum, self.lr = momentum, lr

    def training_step(self, batch, batch_idx):
        a, b = batch
        return (0.5 * a * (self.w - b) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def two_clients() -> list[TensorDataset]:
    """Curvature 1 around 1, curvature 9 around -1: the optimum of the sum is (1 - 9)/10 = -0.8."""
    return [
        TensorDataset(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))
        for a, b in ((1.0, 1.0), (9.0, -1.0))
    ]


def solve(aggregator, rounds=60, callbacks=None, **options) -> float:
    server = FederatedServer(aggregator, weighting="uniform", client=LocalTraining(epochs=10, callbacks=callbacks))
    federated, _ = federate(Quadratic(**options), source=two_clients(), server=server, rounds=rounds)
    return federated.module.w.item()


def test_it_reaches_the_optimum_that_fedavg_misses():
    assert solve(Scaffold()) == pytest.approx(-0.8, abs=1e-6)
    assert abs(solve(FedAvg()) + 0.8) > 0.1


def test_momentum_and_a_changing_learning_rate_are_accounted_for():
    assert solve(Scaffold(), momentum=0.5, lr=0.02, rounds=120) == pytest.approx(-0.8, abs=1e-4)
    assert solve(Scaffold(), callbacks=[LearningRateDecay(0.99)], rounds=80) == pytest.approx(-0.8, abs=1e-5)


def test_its_state_follows_the_papers_formulas(generator):
    model, aggregator = ConvNet(), Scaffold()
    aggregator.num_clients = 8
    c, own = 0.0, dict.fromkeys(range(8), 0.0)
    for chosen in ([0, 1, 2], [2, 5], [0, 2, 7]):
        updates = random_updates(model, 8, generator)
        updates = [updates[client] for client in chosen]
        for update in updates:
            update.num_steps, update.learning_rate = int(generator.integers(1, 20)), float(generator.uniform(0.01, 0.2))
        start = vector(model.state_dict(), PARAMETERS)
        result = aggregator.aggregate(model, updates, weighting="uniform")
        moved = 0.0
        for update in updates:
            w = vector(update.state, PARAMETERS)
            new = own[update.client] - c + (start - w) / (update.num_steps * update.learning_rate)
            moved = moved + new - own[update.client]
            own[update.client] = new
        c = c + moved / 8
        np.testing.assert_allclose(aggregator.control.numpy(), c, rtol=1e-6, atol=1e-8)
        for client in chosen:
            kept = aggregator.store.get(client)["control"].numpy()
            np.testing.assert_allclose(kept, own[client], rtol=1e-5, atol=1e-6)
        expected = np.mean([vector(update.state, PARAMETERS) for update in updates], axis=0)
        np.testing.assert_allclose(vector(result.state, PARAMETERS), expected, rtol=1e-5, atol=1e-6)
        model.load_state_dict(result.state)


def test_the_clients_half_sends_what_the_formula_says():
    sent = {}

    class Spy(Scaffold):
        def accumulate(self, state, update, weight):
            start = self.start.parameters
            expected = (start - state.parameters) / (update.num_steps * update.learning_rate) - self.control
            sent[update.client] = (update.extras["control"], expected)
            super().accumulate(state, update, weight)

    server = FederatedServer(Spy(), weighting="uniform", client=LocalTraining(epochs=2))
    federate(Net(), server=server, rounds=2)
    for got, expected in sent.values():
        torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4)
    assert len(sent) == 4


def test_control_variates_travel_both_ways():
    _, trainer = federate(server=FederatedServer(Scaffold()), rounds=1)
    size = sum(value.nbytes for value in Net().state_dict().values())
    assert trainer.callback_metrics["bytes/up"] == trainer.callback_metrics["bytes/down"] == 2 * 4 * size


class WithOptimizer(Net):
    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(self.parameters())


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: WithOptimizer(torch.optim.Adam), "Scaffold .*Adam does not allow"),
        (lambda: WithOptimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)), "nesterov=True"),
        (
            lambda: WithOptimizer(
                lambda p: torch.optim.SGD([{"params": [next(p)], "lr": 0.1}, {"params": [next(p)], "lr": 0.2}])
            ),
            "one parameter group",
        ),
        (Manual, "Manual hides by manual optimization"),
    ],
)
def test_what_it_cannot_correct_is_refused_before_training(module, message):
    with pytest.raises(MisconfigurationException, match=message):
        federate(module(), server=FederatedServer(Scaffold()), rounds=1)


def test_an_update_of_four_arguments_is_enough(generator):
    model = ConvNet()
    update = random_updates(model, 1, generator)[0]
    bare = ClientUpdate(update.client, update.state, update.num_samples, update.class_counts)
    result = Scaffold().aggregate(model, [bare])
    assert torch.equal(result.state["conv.weight"], update.state["conv.weight"])
