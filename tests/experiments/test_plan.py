"""The runs of a suite are planned, with a parser that only pretends to parse."""

import pytest
import yaml

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments import plan as planning
from fl_lightning.experiments.cells import Cell, Suite
from fl_lightning.experiments.parsing import Parsed
from fl_lightning.experiments.plan import plan


class Parser:
    """Completes every configuration in the same way, and counts how often it is asked."""

    def __init__(self, rounds=3, error=None):
        self.answer = Parsed(yaml.safe_dump({"trainer": {"max_epochs": rounds}}), error=error)
        self.asked = 0

    def __call__(self, command_lines):
        self.asked += 1
        return [self.answer for _ in command_lines]


def unused(command_lines):
    raise AssertionError("a finished suite was parsed")


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base.yaml").write_text("client: {epochs: 1}  # see other.yaml\n")
    return tmp_path / "base.yaml"


def suite(*parts, seeds=(1, 2)):
    cells = tuple(Cell(row, "", parts) for row in ("A", "B"))
    return Suite("suite", "Suite", cells, seeds, ("val/accuracy",), ())


def finish(tasks):
    for task in tasks:
        task.folder.path.mkdir(parents=True)
        task.folder.config.write_text(yaml.safe_dump({"trainer": {"max_epochs": task.rounds}}))
        task.write_record(finished=True)


def test_all_cells_are_parsed_together_and_give_one_run_per_seed(base, tmp_path):
    parser = Parser(rounds=3)
    tasks = plan(suite(base), tmp_path / "out", parse=parser)
    assert parser.asked == 1
    assert [(task.name, task.rounds) for task in tasks] == [
        ("A, seed 1", 3),
        ("B, seed 1", 3),
        ("A, seed 2", 3),
        ("B, seed 2", 3),
    ]


def test_a_finished_suite_is_not_parsed_again(base, tmp_path):
    parts = (base, {"server": {"weighting": "uniform"}})
    tasks = plan(suite(*parts), tmp_path / "out", ["--client.epochs", "2"], parse=Parser())
    finish(tasks)
    assert plan(suite(*parts), tmp_path / "out", ["--client.epochs", "2"], parse=unused) == tasks


@pytest.mark.parametrize("change", ["file", "part", "option", "version", "seed", "unfinished", "record"])
def test_a_suite_is_parsed_again_if_anything_has_changed(base, tmp_path, monkeypatch, change):
    tasks = plan(suite(base), tmp_path / "out", parse=Parser())
    finish(tasks)
    parts, options, seeds, parser = [base], [], (1, 2), Parser()
    if change == "file":
        base.write_text("client: {epochs: 2}")
    elif change == "part":
        parts.append({"client": {"epochs": 2}})
    elif change == "option":
        options = ["--client.epochs", "2"]
    elif change == "version":
        monkeypatch.setattr(planning, "__version__", "newer")
    elif change == "seed":
        seeds = (1, 2, 3)
    elif change == "unfinished":
        tasks[-1].write_record(finished=False)
    elif change == "record":
        tasks[-1].folder.record.write_text('{"finished": true}')
    plan(suite(*parts, seeds=seeds), tmp_path / "out", options, parse=parser)
    assert parser.asked == 1


def test_a_configuration_that_names_another_file_is_always_parsed(base, tmp_path):
    parts = (base, {"model": "model.yaml"})
    parser = Parser()
    finish(plan(suite(*parts), tmp_path / "out", parse=parser))
    plan(suite(*parts), tmp_path / "out", parse=parser)
    assert parser.asked == 2


def test_an_error_names_the_cell(base, tmp_path):
    with pytest.raises(MisconfigurationError, match=r"^A: client\.epochs: many is not of type int$"):
        plan(suite(base), tmp_path / "out", parse=Parser(error="client.epochs: many is not of type int"))
