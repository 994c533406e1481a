"""SCAFFOLD against NumPy, and on two quadratics whose optimum FedAvg misses."""

import numpy as np
import pytest
import torch

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.aggregation import FedAvg, Federation, Scaffold
from fl_lightning.callbacks import FederatedServer, LearningRateDecay
from fl_lightning.core.errors import MisconfigurationError
from tests.aggregation.quadratics import CLIENTS, Quadratic, parabolas
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.toys import ConvNet, Net, federate, random_updates


def solve(aggregator, rounds=25, epochs=10, callbacks=None, **options) -> float:
    client = LocalTraining(epochs=epochs, callbacks=callbacks)
    server = FederatedServer(aggregator, weighting="uniform", client=client)
    federated, _ = federate(Quadratic(**options), source=parabolas(2), server=server, rounds=rounds)
    return federated.module.w.item()


def option_two(rounds: int, epochs: int, lr: float, momentum: float, decay: float) -> float:
    """Run algorithm 1 on the parabolas; (w_t - w_k) is divided by Σ_s Σ_{t≥s} η μ^{t-s}, or steps · η for μ = 0."""
    w, c, own = 0.0, 0.0, [0.0, 0.0]
    for number in range(rounds):
        eta, trained, changes = lr * decay**number, [], []
        for k, (a, b) in enumerate(CLIENTS[:2]):
            local, velocity = w, 0.0
            for _ in range(epochs):
                velocity = momentum * velocity + a * (local - b) + c - own[k]
                local -= eta * velocity
            divisor = sum(eta * momentum ** (t - s) for s in range(epochs) for t in range(s, epochs))
            changes.append((w - local) / divisor - c)
            trained.append(local)
        own = [kept + change for kept, change in zip(own, changes, strict=True)]
        w, c = np.mean(trained), c + sum(changes) / 2
    return w


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1.0), (0.5, 1.0), (0.0, 0.9), (0.5, 0.9)])
def test_a_run_follows_the_papers_algorithm(momentum, decay):
    callbacks = [LearningRateDecay(decay)]
    found = solve(Scaffold(), rounds=5, epochs=4, callbacks=callbacks, momentum=momentum, lr=0.02)
    assert found == pytest.approx(option_two(5, 4, 0.02, momentum, decay), rel=1e-9)


def test_it_reaches_the_optimum_that_fedavg_misses():
    assert solve(Scaffold()) == pytest.approx(-0.8, abs=1e-3)
    assert abs(solve(FedAvg()) + 0.8) > 0.1


def test_the_servers_state_follows_the_papers_formulas(generator):
    model, aggregator = ConvNet(), Scaffold()
    aggregator.prepare(model, Federation(num_clients=8, seed=0))
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


def test_control_variates_are_sent_in_both_directions():
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
        (Manual, "manual optimization in Manual prevents"),
    ],
)
def test_an_optimiser_that_it_cannot_correct_is_refused_before_training(module, message):
    with pytest.raises(MisconfigurationError, match=message):
        federate(module(), server=FederatedServer(Scaffold()), rounds=1)


def test_an_update_with_four_arguments_is_enough(generator):
    model = ConvNet()
    update = random_updates(model, 1, generator)[0]
    bare = ClientUpdate(update.client, update.state, update.num_samples, update.class_counts)
    result = Scaffold().aggregate(model, [bare])
    assert torch.equal(result.state["conv.weight"], update.state["conv.weight"])
