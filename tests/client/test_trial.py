import pytest
import torch
from torch import nn

from fl_lightning.client.trial import explain_trial
from fl_lightning.models import Classifier, DigitsCNN
from tests.runs import write_config
from tests.toys import Net


def error_of(module, batch) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        module.training_step(batch, 0)
    return caught.value


def test_the_layer_and_the_shapes_are_named():
    module, batch = Classifier(DigitsCNN()), [torch.zeros(4, 1, 9, 9), torch.zeros(4, dtype=torch.long)]
    module.net[0] = nn.Conv2d(1, 16, 3)
    explained = explain_trial(error_of(module, batch), module, batch)
    assert "Classifier cannot train on a batch of shape (4, 1, 9, 9) and (4,): net.6 (Linear) got shape" in str(
        explained
    )
    assert "change the model, its optimiser or the data so that they fit" in str(explained)


def test_an_error_in_the_users_own_code_is_not_explained():
    class Wrong(Net):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("mine")

    batch = [torch.zeros(4, 6)]
    assert explain_trial(error_of(Wrong(), batch), Wrong(), batch) is None


CASES = {
    "net": ({"net": {"class_path": "FullyConnected"}}, "net.1 (Linear) got shape (16, 64), RuntimeError"),
    "outputs": (
        {"net": {"class_path": "DigitsCNN", "init_args": {"num_classes": 5}}},
        "num_classes=10, but the network returns 5 logits per sample: set num_classes of Classifier to 5, or that of",
    ),
    "logits": (
        {"net": {"class_path": "DigitsCNN", "init_args": {"num_classes": 16}}},
        "num_classes=10, but the network returns 16 logits per sample: set num_classes of Classifier to 16, or that of",
    ),
    "classes": ({"num_classes": 5}, "num_classes=5, but the training data has the class 9, counted from 0: set"),
    "rate": ({"optimizer": {"class_path": "SGD", "init_args": {"lr": -1}}}, "ValueError: Invalid learning rate: -1"),
    "sparse": ({"optimizer": {"class_path": "SparseAdam"}}, "SparseAdam does not support dense gradients"),
    "momentum": ({"optimizer": {"class_path": "SGD", "init_args": {"momentum": float("nan")}}}, "momentum=nan is not"),
    "schedule": (
        {"lr_scheduler": {"class_path": "CosineAnnealingLR", "init_args": {"T_max": 0}}},
        "ZeroDivisionError",
    ),
    "nothing": ({"net": {"class_path": "torch.nn.Identity"}}, "Classifier has no parameters to train"),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", CASES)
def test_a_model_that_does_not_fit_is_refused_before_the_first_round(run, tmp_path, case):
    changes, problem = CASES[case]
    model = {"class_path": "Classifier", "init_args": {"net": {"class_path": "DigitsCNN"}, **changes}}
    config = write_config(
        tmp_path / "c.yaml",
        model=model,
        data={"source": {"class_path": "Digits"}},
        trainer={"max_epochs": 1, "num_sanity_val_steps": 0},
    )
    code, out, err = run("fit", "--config", config)
    assert code == 2
    assert problem in err.splitlines()[-1]
    assert "After round" not in out
    assert not list((tmp_path / "runs").glob("*/*"))


def test_the_trial_leaves_no_trace(run, tmp_path, monkeypatch):
    from fl_lightning.cli import trial
    from tests.runs import weights

    code, _, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    monkeypatch.setattr(trial.TrialBatch, "on_fit_start", lambda *_: None)
    code, _, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    tried, untried = (weights(tmp_path / "runs" / "run" / f"version_{number}") for number in (0, 1))
    assert all(torch.equal(tried[name], untried[name]) for name in untried)
