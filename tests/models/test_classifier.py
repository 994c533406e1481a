import jsonargparse
import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, Trainer
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.models import Classifier, FullyConnected
from fl_lightning.models.scores import classification_metrics, update_metrics
from tests.toys import federate, quiet_trainer


def test_the_metrics_agree_with_scikit_learn():
    torch.manual_seed(1)
    inputs, labels = torch.randn(90, 5), torch.randint(4, (90,))
    module = Classifier(FullyConnected(inputs=5, hidden=(7,), num_classes=4), num_classes=4)
    trainer: Trainer = quiet_trainer()
    (validated,) = trainer.validate(module, DataLoader(TensorDataset(inputs, labels), batch_size=40), verbose=False)
    (tested,) = trainer.test(module, DataLoader(TensorDataset(inputs, labels), batch_size=32), verbose=False)
    with torch.no_grad():
        logits = module(inputs)
    predicted = logits.argmax(1)
    precision, recall, f1, _ = precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    expected = {
        "loss": loss,
        "accuracy": accuracy_score(labels, predicted),
        "macro_precision": precision,
        "macro_recall": recall,
        "macro_f1": f1,
    }
    assert validated == pytest.approx({f"val/{name}": value for name, value in expected.items()}, rel=1e-5)
    assert tested == pytest.approx({f"test/{name}": value for name, value in expected.items()}, rel=1e-5)


def top_k(logits: torch.Tensor, labels: torch.Tensor, k: int) -> float:
    best = np.argsort(-logits.numpy(), axis=1)[:, :k]
    return float((best == labels.numpy()[:, None]).any(axis=1).mean())


def test_top_k_counts_labels_among_the_k_most_likely_classes_and_starts_over_in_every_validation():
    torch.manual_seed(1)
    module = Classifier(torch.nn.Identity(), num_classes=20, top_k=5)
    trainer: Trainer = quiet_trainer()
    for _ in range(2):
        logits, labels = torch.randn(70, 20), torch.randint(20, (70,))
        loader = DataLoader(TensorDataset(logits, labels), batch_size=30)
        (logged,) = trainer.validate(module, loader, verbose=False)
        assert logged["val/top5_accuracy"] == pytest.approx(top_k(logits, labels, 5))
        assert logged["val/accuracy"] == pytest.approx(top_k(logits, labels, 1))


def test_top_k_and_accuracy_are_separate_even_if_they_agree_on_the_first_batch():
    labels = torch.arange(8) % 4
    logits = torch.nn.functional.one_hot(labels, 4).float()
    logits[4:] = logits[4:].roll(1, dims=1) + 0.5 * logits[4:]  # the label comes second
    module = Classifier(torch.nn.Identity(), num_classes=4, top_k=2)
    (logged,) = quiet_trainer().validate(module, DataLoader(TensorDataset(logits, labels), batch_size=4), verbose=False)
    assert (logged["val/accuracy"], logged["val/top2_accuracy"]) == (0.5, 1.0)


@pytest.mark.parametrize("top_k", [1, 4])
def test_a_meaningless_top_k_is_refused(top_k):
    with pytest.raises(MisconfigurationError, match=f"top_k={top_k}, but there are 4 classes: set top_k from 2 to 3"):
        Classifier(torch.nn.Identity(), num_classes=4, top_k=top_k)


def test_the_classifier_predicts_classes_and_takes_any_optimiser():
    module = Classifier(
        FullyConnected(5, (), 4), num_classes=4, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.3)
    )
    assert isinstance(module.configure_optimizers(), torch.optim.Adam)
    batches = quiet_trainer().predict(module, DataLoader(TensorDataset(torch.randn(6, 5)), batch_size=3))
    assert np.concatenate(batches).shape == (6,)
    assert Classifier(FullyConnected(5, (), 4)).configure_optimizers().param_groups[0]["lr"] == 0.05


_rates: list[float] = []


class Rates(Callback):
    def on_train_epoch_start(self, trainer: Trainer, pl_module: Classifier) -> None:
        _rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_the_scheduler_steps_after_every_local_epoch_and_restarts_in_every_round():
    _rates.clear()
    module = Classifier(
        FullyConnected(6, (), 4),
        num_classes=4,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.08),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5),
    )
    federate(module, server=FederatedServer(client=LocalTraining(epochs=3, callbacks=[Rates()])), rounds=2)
    assert _rates == pytest.approx([0.08, 0.04, 0.02] * 4 * 2)  # 4 clients, 2 rounds


def test_a_scheduler_that_waits_for_a_metric_gets_the_validation_loss():
    module = Classifier(torch.nn.Linear(2, 10), lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert module.configure_optimizers()["lr_scheduler"]["monitor"] == "val/loss"


def test_every_metric_is_logged_once_per_validation_however_many_batches_there_are(monkeypatch):
    logged = []
    monkeypatch.setattr(Classifier, "log", lambda module, name, *args, **kwargs: logged.append(name))
    module = Classifier(torch.nn.Linear(4, 3), num_classes=3)
    for batch in range(3):
        module.validation_step([torch.randn(5, 4), torch.randint(3, (5,))], batch)
    names = ["val/accuracy", "val/loss", "val/macro_f1", "val/macro_precision", "val/macro_recall"]
    assert sorted(logged) == names


def test_net_optimiser_and_scheduler_can_be_named_in_yaml():
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Classifier, "model")
    config = parser.parse_string(
        """
        model:
          net: {class_path: TorchvisionNet, init_args: {name: mobilenet_v2, num_classes: 5, cifar_stem: true}}
          num_classes: 5
          optimizer: {class_path: SGD, init_args: {lr: 0.3}}
          lr_scheduler: {class_path: ExponentialLR, init_args: {gamma: 0.9}}
        """
    )
    made = parser.instantiate(config).model.configure_optimizers()
    assert isinstance(made["lr_scheduler"], torch.optim.lr_scheduler.ExponentialLR)
    assert made["optimizer"].param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("top_k", [None, 2])
def test_metrics_that_are_computed_between_batches_agree_with_those_of_a_fresh_collection(generator, top_k):
    """The metrics share their counts, in and outside inference mode, also after somebody has copied them."""
    metrics = classification_metrics(3, top_k)
    batches = [
        (torch.tensor(generator.normal(size=(8, 3)), dtype=torch.float32), torch.tensor(generator.integers(3, size=8)))
        for _ in range(4)
    ]
    for inference in (True, False):
        with torch.inference_mode(inference):
            metrics.reset()
            for number, (logits, labels) in enumerate(batches):
                update_metrics(metrics, logits, labels)
                if number == 2:
                    list(metrics.items())  # copies the counts
                if number in (1, 3):
                    fresh = classification_metrics(3, top_k)
                    fresh.update(*(torch.cat(parts) for parts in zip(*batches[: number + 1], strict=True)))
                    torch.testing.assert_close(metrics.compute(), fresh.compute())
