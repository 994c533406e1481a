import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.data import IID, ByList, FreshDraw, RandomClients
from fl_lightning.data.ownership import Ownership
from fl_lightning.partition_picture import partition_figure, partition_image
from fl_lightning.partition_table import partition_table
from tests.toys import Blobs, Net, federate


class Unaffordable(Net):
    def __init__(self) -> None:
        raise AssertionError("the model was made")


def ownership(partition, samples: int = 120, **kwargs) -> Ownership:
    data = FederatedDataModule(Blobs(samples), partition=partition, **kwargs)
    data.setup("fit")
    return Ownership.of(data)


def made_up(clients: int, classes: int, sizes: np.ndarray | None = None) -> Ownership:
    counts = np.random.default_rng(0).integers(0, 90, (clients, classes))
    sizes = counts.sum(axis=1) if sizes is None else sizes
    return Ownership("Data", "Partition", np.arange(clients), sizes, counts, 10**6, 10**6, 0)


def test_the_command_prints_a_table_draws_a_picture_and_makes_neither_model_nor_trainer_nor_run(run, tmp_path):
    before = sorted(tmp_path.iterdir())
    needless = ["--model", "tests.test_partition_command.Unaffordable", "--trainer.accelerator", "cuda"]
    code, out, err = run("partition", "--config", "run.yaml", *needless, "--output", "owners.png")
    assert code == 0, err
    assert out.startswith("Blobs, 120 samples of 4 classes\nClassesPerClient(num_clients=10, classes=2), seed 3\n")
    assert " total      120        4  30  30  30  30" in out
    assert "120 of 120 samples have an owner, 0 more than one" in out
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "owners.png"])
    assert imread(tmp_path / "owners.png").shape[:2] == (900, 1500)


def test_the_command_shows_the_partition_of_a_run_by_its_own_config_and_tensorboard_has_the_picture(run, tmp_path):
    code, _, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    run_folder = tmp_path / "runs" / "run" / "version_0"
    assert pictures(run_folder) == 1
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run("partition", "--config", run_folder / "config.yaml", "--data.partition.num_clients", 6)
    assert code == 0, err
    assert "ClassesPerClient(num_clients=6, classes=2), seed 3" in out
    assert sorted(tmp_path.rglob("*")) == before


def pictures(folder) -> int:
    events = EventAccumulator(str(folder))
    events.Reload()
    return len(events.Images("partition")) if "partition" in events.Tags()["images"] else 0


def test_a_resumed_run_does_not_draw_its_picture_again(tmp_path):
    def fit(rounds: int, version: str, ckpt_path=None) -> str:
        logger = TensorBoardLogger(tmp_path, "", version)
        _, trainer = federate(rounds=rounds, logger=logger, enable_checkpointing=True, ckpt_path=ckpt_path)
        return trainer.checkpoint_callback.best_model_path

    checkpoint = fit(1, "first")
    assert pictures(tmp_path / "first") == 1
    fit(2, "resumed", checkpoint)
    assert pictures(tmp_path / "resumed") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "owners"], "output=owners: set --output to a file that ends in .png, .pdf or .svg"),
        (["--output", "nowhere/owners.png"], "output=nowhere/owners.png: there is no folder nowhere"),
        (["--data.partition.classes", 12], "classes=12, but the data set has 4"),
        (["--data.partition", "MixedNodes", "--data.partition.classes", "[1, 0]"], "samples_per_node"),
        (
            [
                "--data.partition",
                "MixedNodes",
                "--data.partition.classes=[1,1-9]",
                "--data.partition.samples_per_node=5",
            ],
            "classes=9, but the data set has 4",
        ),
    ],
)
def test_a_mistake_gets_one_line(run, tmp_path, arguments, message):
    code, _, err = run("partition", "--config", "run.yaml", *arguments)
    assert code == 2
    assert [message in line for line in err.splitlines() if line.startswith("error: ")] == [True]


def test_help_lists_all_commands(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("fit", "validate", "test", "partition", "compare", "report"):
        assert f"\n    {command} " in out


def test_help_of_the_command_is_complete(run):
    code, out, _ = run("partition", "--help")
    assert code == 0
    for option in ("--config", "--output", "--data.partition", "--seed_everything"):
        assert option in out


@pytest.mark.parametrize("command", ["compare", "report"])
def test_other_commands_get_their_arguments_and_their_mistakes_one_line(run, monkeypatch, command):
    seen = []
    monkeypatch.setitem(sys.modules, f"fl_lightning.{command}", SimpleNamespace(main=seen.append))
    assert run(command, "suite.yaml", "--jobs", 2)[0] == 0
    assert seen == [["suite.yaml", "--jobs", "2"]]

    def refuse(_):
        raise MisconfigurationException("suite.yaml:\n  there is no such file")

    monkeypatch.setitem(sys.modules, f"fl_lightning.{command}", SimpleNamespace(main=refuse))
    assert run(command, "suite.yaml") == (2, "", "error: suite.yaml: there is no such file\n")


def test_ownership_counts_the_samples_of_each_client_and_class():
    found = ownership(ByList([[0, 1, 4], [4, 5], [3]]), samples=8)  # the label of sample i is i mod 4
    assert found.counts.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]
    assert found.sizes.tolist() == [3, 2, 1]
    assert (found.num_samples, found.num_owned, found.num_shared) == (8, 5, 1)


def test_where_clients_redraw_those_of_the_first_round_are_shown():
    found = ownership(FreshDraw(1000, 2, 2), selection=RandomClients(count=3), seed=1)
    assert found.clients.tolist() == RandomClients(count=3).cohort(1000, seed=1, round=0)
    assert found.counts.tolist() == [[2, 2, 2, 2]] * 3
    assert found.partition.endswith("drawn anew every round: round 1")


def test_data_without_classes_has_sizes_only():
    data = FederatedDataModule([TensorDataset(torch.zeros(n, 2), torch.zeros(n)) for n in (3, 5)])
    data.setup("fit")
    found = Ownership.of(data)
    assert found.counts is None
    assert partition_table(found, 80).splitlines()[:3] == [
        "ClientDatasets, 8 samples",
        "ready-made, seed 0",
        "",
    ]
    assert partition_image(found).shape == (600, 1000, 3)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("clients", "classes"), [(3, 4), (30, 200), (5000, 10)])
def test_no_line_of_the_table_is_wider_than_the_terminal(width, clients, classes):
    lines = partition_table(made_up(clients, classes), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 40


def test_many_clients_are_summarised_by_quantiles():
    rows = {}
    for line in partition_table(made_up(101, 2, sizes=np.arange(101)), 80).splitlines():
        name, *cells = line.replace("25 %", "25%").replace("75 %", "75%").split() or [""]
        rows[name] = cells
    assert [rows[name][0] for name in ("min", "25%", "median", "75%", "max")] == ["0", "25", "50", "75", "100"]
    assert rows["total"][0] == "5050"
    assert {"0", "9", "96", "100"} <= rows.keys()
    assert "50" not in rows


@pytest.mark.parametrize(
    ("clients", "classes", "kind"), [(20, 10, "bubbles"), (20, 200, "map"), (100, 10, "map"), (3000, 1, "map")]
)
def test_few_clients_have_bubbles_and_many_a_map(clients, classes, kind):
    figure = partition_figure(made_up(clients, classes))
    assert any(axes.images for axes in figure.axes) == (kind == "map")
    assert any(axes.collections and axes.get_ylabel() == "class" for axes in figure.axes) == (kind == "bubbles")


def test_the_bubbles_areas_are_the_counts():
    found = ownership(IID(5))
    (bubbles, *_) = (axes.collections[0] for axes in partition_figure(found).axes if axes.get_ylabel() == "class")
    clients, classes = bubbles.get_offsets().astype(int).T
    areas = bubbles.get_sizes()
    assert areas / areas.max() == pytest.approx(found.counts[clients, classes] / found.counts.max())
