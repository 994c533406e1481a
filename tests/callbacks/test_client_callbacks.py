"""Client callbacks, and aggregators with a client's half: proximal terms, schedules, FedBN and evaluation."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedBN, FedProx
from fl_lightning.callbacks import (
    ClientCallback,
    ClientEvaluation,
    CosineAnnealing,
    FederatedServer,
    LearningRateDecay,
    ProximalTerm,
)
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID
from fl_lightning.data.evaluation import SlicedLoader
from tests.callbacks.test_server import Keep
from tests.toys import Blobs, Net, federate, identical


def run(aggregator=None, callbacks=None, epochs=1, **options):
    torch.manual_seed(0)
    keep = Keep()
    server = FederatedServer(aggregator, client=LocalTraining(epochs=epochs, callbacks=callbacks))
    federated, _ = federate(
        options.pop("module", None), Blobs(batch_size=8), server=server, callbacks=[keep], **options
    )
    return dict(federated.state_dict()), keep


def test_a_mu_of_zero_is_fedavg_bit_for_bit():
    average, _ = run()
    assert identical(run(FedProx(mu=0.0))[0], average)
    assert identical(run(callbacks=[ProximalTerm(0.0)])[0], average)


def test_the_aggregator_and_the_callback_add_the_same_proximal_term():
    assert identical(run(FedProx(mu=0.3))[0], run(callbacks=[ProximalTerm(0.3)])[0])


def test_the_proximal_term_equals_the_papers_term_in_the_loss():
    class ByHand(Net):
        """Adds the term to the loss, as the paper does."""

        def on_fit_start(self):
            self.start = [parameter.detach().clone() for parameter in self.parameters()]

        def training_step(self, batch, batch_idx):
            distance = sum(((p - s) ** 2).sum() for p, s in zip(self.parameters(), self.start, strict=True))
            return super().training_step(batch, batch_idx) + 0.5 * 0.3 * distance

    torch.manual_seed(0)
    expected, _ = run(module=ByHand())
    torch.manual_seed(0)
    got, _ = run(callbacks=[ProximalTerm(0.3)], module=Net())
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-6)


def test_a_strong_proximal_term_keeps_clients_close():
    def distance(keep):
        return sum(
            ((update.state[name] - start) ** 2).sum().item()
            for update, _ in keep.updates[0]
            for name, start in keep.starts[0].items()
        )

    assert distance(run(FedProx(mu=3.0))[1]) < 0.5 * distance(run()[1])


class Rates(Callback):
    """Records the learning rate of each step, in one list for all clients."""

    seen: ClassVar[list[float]] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.fixture
def rates():
    Rates.seen.clear()
    return Rates.seen


@pytest.mark.parametrize("horizon", ["run", "round"])
def test_cosine_annealing_follows_the_papers_equation_at_every_batch(rates, horizon):
    rounds, epochs, batches, eta, eta_min = 3, 2, 15, 0.1, 0.01
    schedule = CosineAnnealing(horizon=horizon, eta_min=eta_min)
    run(callbacks=[schedule, Rates()], epochs=epochs, rounds=rounds, partition=IID(1))
    expected = []
    for round_ in range(rounds):
        for epoch in range(epochs):
            for batch in range(batches):
                current = epoch + batch / batches + (round_ * epochs if horizon == "run" else 0)
                total = epochs * (rounds if horizon == "run" else 1)
                expected.append(eta_min + 0.5 * (eta - eta_min) * (1 + math.cos(math.pi * current / total)))
    assert rates == pytest.approx(expected, abs=1e-7)


def test_the_learning_rate_decays_from_round_to_round_and_is_constant_within_one(rates):
    run(callbacks=[LearningRateDecay(0.9), Rates()], rounds=3, partition=IID(1))
    assert rates == pytest.approx([0.1] * 15 + [0.09] * 15 + [0.081] * 15)


def test_cosine_annealing_over_an_endless_run_is_refused():
    with pytest.raises(MisconfigurationError, match=r"set trainer\.max_epochs"):
        run(callbacks=[CosineAnnealing()], rounds=-1, max_steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProximalTerm(-1.0), "mu=-1.0"),
        (lambda: CosineAnnealing(horizon="week"), "horizon='week'"),
        (lambda: LearningRateDecay(1.1), "factor=1.1"),
        (lambda: ClientEvaluation(0), "every_n_rounds=0"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_fedbn_keeps_each_clients_own_normalisation_layers():
    server = FederatedServer(FedBN())
    keep = Keep()
    federate(Net(batch_norm=True), server=server, callbacks=[keep], rounds=1)
    entries = [f"layers.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    for update, _ in keep.updates[0]:
        expected = {name: update.state[name] for name in entries}
        assert identical(server.aggregator.personal_state(update.client), expected)


def test_fedbn_starts_a_client_from_its_own_layers():
    starts = {}

    class Start(Net):
        def on_fit_start(self):
            starts.setdefault(self.trainer.callbacks[0].client, []).append(self.layers[1].running_mean.clone())

    _, keep = run(FedBN(), module=Start(batch_norm=True), callbacks=[ClientCallback()], rounds=2)
    for update, _ in keep.updates[0]:
        assert torch.equal(starts[update.client][1], update.state["layers.1.running_mean"])


def test_fedbn_without_normalisation_is_refused():
    with pytest.raises(MisconfigurationError, match="FedBN on Net, which has no normalisation layer"):
        run(FedBN())


def test_every_client_is_evaluated_with_its_own_model():
    torch.manual_seed(0)
    server = FederatedServer(FedBN())
    federated, trainer = federate(Net(batch_norm=True), server=server, callbacks=[ClientEvaluation()], rounds=2)
    inputs, labels = trainer.datamodule.source.dataset.tensors
    accuracies = []
    for client in range(4):
        model = Net(batch_norm=True).eval()
        model.load_state_dict({**federated.state_dict(), **server.aggregator.personal_state(client)})
        accuracies.append((model(inputs).argmax(1) == labels).double().mean().item())
    metrics = trainer.callback_metrics
    assert metrics["clients/val_accuracy_mean"] == pytest.approx(sum(accuracies) / 4, rel=1e-6)
    assert metrics["clients/val_accuracy_worst"] == pytest.approx(min(accuracies), rel=1e-6)
    assert metrics["clients/val_accuracy_std"] == pytest.approx(np.std(accuracies), abs=1e-6)


def test_clients_are_evaluated_with_the_sliced_loader_of_the_server():
    loaders = set()

    class Watch(Net):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            loaders.add(self.trainer.val_dataloaders)

    federate(Watch(), callbacks=[ClientEvaluation()], rounds=2)
    assert [type(loader) for loader in loaders] == [SlicedLoader]


def test_a_module_that_logs_metric_objects_can_be_evaluated_per_client_and_fitted_twice():
    from fl_lightning.models import Classifier, FullyConnected

    module = Classifier(FullyConnected(6, (5,), 4), num_classes=4)
    module.net.append(torch.nn.BatchNorm1d(4))
    for _ in range(2):
        _, trainer = federate(module, server=FederatedServer(FedBN()), callbacks=[ClientEvaluation()], rounds=1)
        assert 0 <= trainer.callback_metrics["clients/val_accuracy_mean"] <= 1
