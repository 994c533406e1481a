import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.models import Classifier, DigitsCNN, FullyConnected, MnistCNN
from tests.toys import quiet_trainer


def parameters(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("net", "shape", "expected"),
    [
        (MnistCNN(), (1, 28, 28), 431_080),  # FedNNNN, Table 3
        (FullyConnected(), (1, 28, 28), 784 * 200 + 200 + 200 * 10 + 10),
        (FullyConnected(inputs=64, hidden=(), num_classes=3), (1, 8, 8), 64 * 3 + 3),
        (DigitsCNN(), (1, 8, 8), (9 + 1) * 16 + (16 * 9 + 1) * 32 + (512 + 1) * 64 + (64 + 1) * 10),
    ],
)
def test_networks_have_the_expected_size_and_give_logits(net, shape, expected):
    assert parameters(net) == expected
    logits = net(torch.zeros(3, *shape))
    assert logits.shape == (3, 3 if expected == 195 else 10)


def test_the_classifiers_metrics_are_those_of_scikit_learn():
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


def test_the_classifier_predicts_classes_and_takes_any_optimiser():
    module = Classifier(
        FullyConnected(5, (), 4), num_classes=4, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.3)
    )
    assert isinstance(module.configure_optimizers(), torch.optim.Adam)
    batches = quiet_trainer().predict(module, DataLoader(TensorDataset(torch.randn(6, 5)), batch_size=3))
    assert np.concatenate(batches).shape == (6,)
    assert Classifier(FullyConnected(5, (), 4)).configure_optimizers().param_groups[0]["lr"] == 0.05
