"""Ditto against NumPy, over whole runs with partial participation."""

import numpy as np
import pytest
import torch

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg, FedBN, Scaffold
from fl_lightning.callbacks import ClientEvaluation, Ditto, FederatedServer, LearningRateDecay
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import RandomClients
from tests.aggregation.quadratics import CLIENTS, Quadratic, parabolas
from tests.toys import Net, federate, identical


def algorithm_1(cohorts, lam: float, epochs: int, lr: float = 0.05) -> tuple[float, dict[int, float]]:
    """Run the paper's algorithm 1 on the parabolas: FedAvg for w, and v ← v - η (∇f_k(v) + λ (v - w))."""
    w, personal = 0.0, {}
    for cohort in cohorts:
        trained = []
        for k in cohort:
            a, b = CLIENTS[k]
            local, v = w, personal.get(k, w)
            for _ in range(epochs):
                local -= lr * a * (local - b)
                v -= lr * (a * (v - b) + lam * (v - w))
            personal[k] = v
            trained.append(local)
        w = np.mean(trained)
    return w, personal


@pytest.mark.parametrize("count", [5, 2])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_a_run_follows_the_papers_algorithm(count, lam):
    client = LocalTraining(epochs=3, callbacks=[Ditto(lam)])
    server = FederatedServer(FedAvg(), "uniform", client)
    selection = RandomClients(count=count)
    federated, trainer = federate(Quadratic(), parabolas(5), selection=selection, server=server, rounds=6)
    w, personal = algorithm_1([trainer.datamodule.cohort(number) for number in range(6)], lam, epochs=3)
    assert federated.module.w.item() == pytest.approx(w, rel=1e-9)
    memory = server.store.part("Ditto")
    assert memory.clients() == sorted(personal)
    for client, v in personal.items():
        assert memory.get(client)["w"].item() == pytest.approx(v, rel=1e-9)


@pytest.mark.parametrize("aggregator", [FedAvg, Scaffold])
def test_the_global_model_is_the_same_as_without_ditto(aggregator):
    def run(callbacks):
        torch.manual_seed(0)
        client = LocalTraining(epochs=2, callbacks=callbacks)
        federated, _ = federate(Net(momentum=0.5), server=FederatedServer(aggregator(), client=client), rounds=3)
        return dict(federated.state_dict())

    assert identical(run([LearningRateDecay(0.9), Ditto()]), run([LearningRateDecay(0.9)]))


def test_client_evaluation_uses_the_personal_models():
    client = LocalTraining(epochs=2, callbacks=[Ditto(0.1)])
    server = FederatedServer(FedBN(), client=client)
    module = Net(batch_norm=True)
    federated, trainer = federate(
        module, selection=RandomClients(count=2), server=server, callbacks=[ClientEvaluation()], rounds=2
    )
    inputs, labels = trainer.datamodule.source.dataset.tensors
    accuracies = []
    for number in range(4):
        model = Net(batch_norm=True).eval()
        own = server.store.part("Ditto").get(number) or server.aggregator.personal_state(number)
        model.load_state_dict({**federated.state_dict(), **own})
        accuracies.append((model(inputs).argmax(1) == labels).double().mean().item())
    assert trainer.callback_metrics["clients/val_accuracy_mean"] == pytest.approx(np.mean(accuracies), rel=1e-6)


def test_a_negative_strength_is_refused():
    with pytest.raises(MisconfigurationError, match=r"lam=-1.*set lam of Ditto to 0 or more"):
        Ditto(-1)
