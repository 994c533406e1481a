"""The papers' settings: every config in configs/data runs, on tiny files in the formats of the real data sets."""

from pathlib import Path

import pytest
import yaml
from torch import nn

from fl_lightning.models import AlexNet32
from tests.data.files import write_cifar10, write_mnist, write_tiny_imagenet, write_tweets
from tests.runs import REPOSITORY, fl_lightning, succeeded

CONFIGS = REPOSITORY / "configs"
#: files in configs/data that go on top of others
OVERLAYS = {"fedadp_mlr", "feddna_augmented", "fedns_momentum"}
COMPLETE = sorted(path for path in (CONFIGS / "data").glob("*.yaml") if path.stem not in OVERLAYS)
PARTITIONS = sorted((CONFIGS / "partitions").glob("*.yaml"))
ALL = sorted(CONFIGS.rglob("*.yaml"))
SHORT = [
    *("--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "1"),
    *("--client.epochs", "1", "--client.limit_train_batches", "1"),
    *("--data.selection", "RandomClients", "--data.selection.fraction", "null", "--data.selection.count", "2"),
]


class NarrowAlexNet(AlexNet32):
    """AlexNet with 64 features instead of 4096, because a run has ten copies of it, a gigabyte."""

    def __init__(self) -> None:
        super().__init__()
        self[15], self[18], self[20] = nn.Linear(1024, 64), nn.Linear(64, 64), nn.Linear(64, 10)


#: settings with networks that take seconds to train
DEEP = ("feddna_cifar10", "fedns_tiny_imagenet", "n_fedavg_cifar10")
#: overrides, because the tiny files have few samples, pre-trained weights need a network and AlexNet much memory
INSTEAD = {
    "feddna_cifar10": ["--data.partition.shards_per_class", "4", "--client.batch_size", "4"],
    "fedns_cifar10": [
        *("--data.partition.low", "1", "--data.partition.high", "3"),
        *("--model.net", "tests.test_configs.NarrowAlexNet"),
    ],
    "fedns_tiny_imagenet": ["--data.partition.low", "1", "--data.partition.high", "3"],
    "n_fedavg_cifar10": [
        "--model.net",
        '{"class_path": "TorchvisionNet", "init_args": {"name": "resnet18", "weights": null}}',
        *("--client.batch_size", "4"),
    ],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write about 800 images per class of MNIST and Fashion-MNIST, and a few of each other data set."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("MNIST", "FashionMNIST"):
            write_mnist(root / name / "raw", train=8000)
        write_cifar10(root, monkeypatch, per_batch=60)
        write_tiny_imagenet(root)
        write_tweets(root, [(4 * (row % 2), f"user{row % 7}", f"word{row % 11} again") for row in range(600)])
        yield root


@pytest.fixture
def data(files, tmp_path) -> Path:
    """Make the files available as ./data."""
    (tmp_path / "data").symlink_to(files)
    return tmp_path / "data"


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "config",
    [pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in DEEP else ()) for path in COMPLETE],
)
def test_every_setting_trains_for_two_rounds(data, alone, tmp_path, config):
    options = [*SHORT, *INSTEAD.get(config.stem, [])]
    printed = succeeded(fl_lightning("fit", "--config", config, *options, folder=tmp_path))
    assert "val/accuracy" in printed
    assert (tmp_path / "runs" / config.stem / "version_0" / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.parametrize("name", ["fedadp_mnist", "fedadp_fashion_mnist"])
def test_the_convex_model_of_fedadp_trains_for_two_rounds(run, data, name):
    code, out, err = run(
        "fit", "--config", CONFIGS / f"data/{name}.yaml", "--config", CONFIGS / "data/fedadp_mlr.yaml", *SHORT
    )
    assert code == 0, err
    assert "7,850 parameters" in out


def merged(run, *configs: str) -> dict:
    """Return the config that a run with these files would have."""
    options = [option for config in configs for option in ("--config", CONFIGS / config)]
    code, out, err = run("fit", *options, "--print_config")
    assert code == 0, err
    return yaml.safe_load(out)


def test_the_augmentation_of_feddna_changes_nothing_else(run):
    plain = merged(run, "data/feddna_cifar10.yaml")
    augmented = merged(run, "data/feddna_cifar10.yaml", "data/feddna_augmented.yaml")
    assert plain["data"]["source"]["init_args"].pop("augment") is False
    assert augmented["data"]["source"]["init_args"].pop("augment") is True
    assert plain == augmented


@pytest.mark.parametrize("name", ["fedns_fashion_mnist", "fedns_cifar10", "fedns_tiny_imagenet"])
def test_the_momentum_of_fedns_changes_nothing_else(run, name):
    plain = merged(run, f"data/{name}.yaml")
    changed = merged(run, f"data/{name}.yaml", "data/fedns_momentum.yaml")
    assert plain["model"]["init_args"]["optimizer"]["init_args"].pop("momentum") == 0
    assert changed["model"]["init_args"]["optimizer"]["init_args"].pop("momentum") == 0.9
    assert plain == changed


def test_the_three_parts_of_n_fedavg_together_are_its_overlay(run):
    base, overlay = "data/n_fedavg_cifar10.yaml", "algorithms/n_fedavg{}.yaml".format
    parts = merged(run, base, *map(overlay, ("_sequential", "_cosine", "_sparse")))
    assert parts == merged(run, base, overlay(""))
    restarts = merged(run, base, overlay(""), overlay("_cosine_restarts"))
    assert restarts["client"]["callbacks"][0]["init_args"].pop("horizon") == "round"
    assert parts["client"]["callbacks"][0]["init_args"].pop("horizon") == "run"
    assert parts == restarts


@pytest.mark.spread(4)
@pytest.mark.parametrize("overlay", PARTITIONS, ids=lambda path: path.stem)
def test_every_partition_fits_the_data_of_its_paper(run, data, overlay):
    paper = overlay.stem.split("_")[0]
    base = next(path for path in COMPLETE if path.stem.startswith(paper) and path.stem.endswith("mnist"))
    code, out, err = run("partition", "--config", base, "--config", overlay)
    assert code == 0, err
    assert yaml.safe_load(overlay.read_text())["data"]["partition"]["class_path"] in out


@pytest.mark.parametrize("config", ALL, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_config_starts_with_a_comment(config):
    assert config.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        ("fedprox", {"mu": 0.015}),
        ("normnorm", {"beta": 1.0}),
        ("momentum", {"gamma": 0.9}),
        ("fednnnn", {"beta": 0.7, "gamma": 0.8}),
    ],
)
def test_the_methods_of_fednnnn_have_the_values_of_its_table_5_for_balanced_non_iid_mnist(overlay, values):
    config = yaml.safe_load((CONFIGS / f"algorithms/{overlay}.yaml").read_text())
    assert config["server"]["aggregator"]["init_args"] == values
