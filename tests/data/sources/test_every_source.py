"""Models train from YAML on every data set that has to be downloaded, here with tiny files in its real format."""

import sys

import pytest
import yaml

from fl_lightning.cli.main import main
from tests.data.files import write_cifar10, write_folders, write_mnist, write_tiny_imagenet, write_tweets

TWEETS = [(4 * (row % 2), f"user{row % 3}", "so happy today" if row % 2 else "@you it rains") for row in range(40)]
IMAGES = {"partition": {"class_path": "IID", "init_args": {"num_clients": 2}}}
BY_USER = {"partition": {"class_path": "ByColumn", "init_args": {"column": "user"}}}


def linear(inputs: int, classes: int = 10) -> dict:
    return {
        "net": {"class_path": "MLR", "init_args": {"inputs": inputs, "num_classes": classes}},
        "num_classes": classes,
    }


BILSTM = {"net": {"class_path": "BiLSTM", "init_args": {"vocabulary_size": 50, "hidden": 4}}, "num_classes": 2}


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pytorch_lightning.cli")
@pytest.mark.parametrize(
    ("source", "arguments", "write", "model", "data"),
    [
        ("MNIST", {}, lambda root, patch: write_mnist(root / "MNIST" / "raw"), linear(784), IMAGES),
        ("FashionMNIST", {}, lambda root, patch: write_mnist(root / "FashionMNIST" / "raw"), linear(784), IMAGES),
        ("CIFAR10", {"augment": True}, write_cifar10, linear(3072), IMAGES),
        ("ImageFolder", {"image_size": 6}, lambda root, patch: write_folders(root), linear(108, 2), IMAGES),
        ("TinyImageNet", {}, lambda root, patch: write_tiny_imagenet(root), linear(12288, 3), IMAGES),
        ("Sentiment140", {"vocabulary_size": 50}, lambda root, patch: write_tweets(root, TWEETS), BILSTM, BY_USER),
    ],
    ids=["MNIST", "FashionMNIST", "CIFAR10", "ImageFolder", "TinyImageNet", "Sentiment140"],
)
def test_a_model_trains_on_every_source_for_two_rounds_and_is_tested(
    tmp_path, monkeypatch, capsys, source, arguments, write, model, data
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", monkeypatch)  # the default root
    config = {
        "model": {"class_path": "Classifier", "init_args": model},
        "data": {"source": {"class_path": source, "init_args": {"batch_size": 4, **arguments}}, **data},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    main(["fit", "--config", "run.yaml"])
    assert "After round 2" in capsys.readouterr().out
    main(["test", "--config", "run.yaml", "--ckpt_path", "last"])
    assert "test/accuracy" in capsys.readouterr().out
