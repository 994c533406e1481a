"""The suites of configs/papers: docs/papers.md lists them, and two rounds of their cells run on tiny files.

The tiny files are in the formats of the real data sets. ``make test`` tries a few small cells, ``make test-all`` all.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl_lightning.cli.dry import dry_run
from fl_lightning.experiments.cells import Cell, Part
from fl_lightning.experiments.suite import load_suite
from tests.data.files import write_cifar10, write_mnist, write_tiny_imagenet, write_tweets
from tests.docs.pages import DOCS
from tests.runs import REPOSITORY

PAPERS = REPOSITORY / "configs" / "papers"
#: the files that are not parts of others
SUITES = {path.stem: path for path in sorted(PAPERS.rglob("*.yaml")) if "rows" in yaml.safe_load(path.read_text())}
#: a few small cells: rows, columns, cells of their own, parameters, and a run that needs another run
SMALL = {
    "fednnnn_table2_mnist": ["FedProx, IID - UB", "FedNNNN, non-IID - UB"],
    "fedadp_figure6": ["FedAdp, 8"],
    "fedns_table1": ["FedAvg+lastFC, non-iid", "FedNS, non-iid"],
    "feddna_table1": ["Central, LeNet@MNIST", "FedDNA, LeNet@MNIST", "Fed-GN, BiLSTM@Sent140", "FedMA, LeNet@MNIST"],
}
#: options that make a paper's runs fit the tiny files, and do without a download
TINY = {
    "fedadp": ["--data.partition.samples_per_node", "20"],
    "fedns_table3": ["--data.partition.low", "1", "--data.partition.high", "3"],
    "n_fedavg": ["--model.net", '{"class_path": "TorchvisionNet", "init_args": {"name": "resnet50", "weights": null}}'],
}

every_suite = pytest.mark.parametrize("name", SUITES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write 800 images per class of MNIST and Fashion-MNIST, 300 of CIFAR-10, 3 of tiny-ImageNet, and 600 tweets."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("MNIST", "FashionMNIST"):
            write_mnist(root / name / "raw", train=8000)
        write_cifar10(root, monkeypatch, per_batch=600)
        write_tiny_imagenet(root)
        write_tweets(root, [(4 * (row % 2), f"user{row % 7}", f"word{row % 11} again") for row in range(600)])
        yield root


def try_cells(name: str, data: Path, chosen: Iterable[str] | None = None) -> int:
    """Run two short rounds of the chosen cells, or of all, and return the exit code."""
    suite = load_suite(SUITES[name])
    names = {cell.name for cell in suite.cells} if chosen is None else set(chosen)
    assert names <= {cell.name for cell in suite.cells}
    suite = replace(suite, cells=tuple(cell for cell in suite.cells if cell.name in names))
    tiny = [option for start, options in TINY.items() if name.startswith(start) for option in options]
    return dry_run(suite, names, 1, ["--data.source.root", str(data), *tiny])


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", SMALL)
def test_small_cells_run_for_two_rounds(name, data, capfd):
    assert try_cells(name, data, SMALL[name]) == 0, capfd.readouterr().out


@pytest.mark.slow
@every_suite
def test_every_cell_runs_for_two_rounds(name, data, alone, capfd):
    assert try_cells(name, data) == 0, capfd.readouterr().out


def test_no_two_suites_write_into_the_same_folder():
    assert len(SUITES) == sum("rows" in yaml.safe_load(path.read_text()) for path in PAPERS.rglob("*.yaml"))


@every_suite
def test_a_suite_says_in_at_most_four_lines_what_it_is_and_how_it_is_run(name):
    comment = re.match(r"(#.*\n)+", SUITES[name].read_text())
    assert comment is not None
    lines = comment.group().splitlines()
    assert len(lines) <= 4
    assert lines[-1] == f"#   fl-lightning compare {SUITES[name].relative_to(REPOSITORY)} --jobs 2"


def merge(config: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Merge two configs as the command line does. A list replaces another, and so do the arguments of another class."""
    if "class_path" in part and part["class_path"] != config.get("class_path"):
        return part
    merged = dict(config)
    for key, value in part.items():
        merged[key] = merge(config.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


def content(part: Part) -> dict[str, Any]:
    return part if isinstance(part, dict) else yaml.safe_load(part.read_text())


def client_epochs(cell: Cell) -> int:
    """Return how many local epochs all clients of a run train together: rounds · clients per round · E."""
    config: dict[str, Any] = {}
    for part in cell.parts:
        config = merge(config, content(part))
    partition = config["data"]["partition"]["init_args"]
    clients = partition["num_clients"] if "num_clients" in partition else len(partition["classes"])
    fraction = config["data"].get("selection", {}).get("init_args", {}).get("fraction", 1.0)
    return config["trainer"]["max_epochs"] * max(round(fraction * clients), 1) * config["client"]["epochs"]


def rows_of_the_page() -> list[list[str]]:
    """Return the cells of every row on the page that has a command."""
    lines = (DOCS / "papers.md").read_text().splitlines()
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "| `fl-lightning compare" in line]


@every_suite
def test_the_page_of_the_papers_has_the_command_of_every_suite(name):
    commands = [command for _, command, *_ in rows_of_the_page()]
    assert f"fl-lightning compare {SUITES[name].relative_to(REPOSITORY)}" in commands


@pytest.mark.parametrize("row", rows_of_the_page(), ids=lambda row: row[0])
def test_the_page_of_the_papers_has_the_cost_of_a_command(row):
    _, command, runs, epochs, *_ = row
    seeds = re.search(r"--seeds (\d+)", command)
    only = re.findall(r"--only (\S+)", command)
    suite = load_suite(REPOSITORY / command.split()[2], int(seeds.group(1)) if seeds else None)
    cells = [cell for cell in suite.cells if not cell.skip and (not only or {cell.row, cell.column} & set(only))]
    needed = {name for cell in cells for name in cell.needs}
    cells += [cell for cell in suite.cells if cell.name in needed and cell not in cells]
    assert runs == f"{len(cells)} × {len(suite.seeds)}"
    assert epochs == f"{sum(map(client_epochs, cells)) * len(suite.seeds):,}"
