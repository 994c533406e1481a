"""The runs of a suite are planned, with a parser that only pretends to parse."""

from pathlib import Path

import pytest
import yaml

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
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


def test_cells_that_are_not_chosen_are_left_out_unless_they_have_runs(base, tmp_path):
    parts, output, parser = (base, {"client": {"epochs": 1}}), tmp_path / "out", Parser()
    tasks = plan(suite(*parts), output, parse=parser, chosen={"A"})
    assert [task.name for task in tasks] == ["A, seed 1", "A, seed 2"]
    assert not (output / "B").exists()
    finish(tasks)
    assert plan(suite(*parts), output, parse=unused, chosen={"A"}) == tasks
    both = plan(suite(*parts), output, parse=parser, chosen={"B"})
    assert [task.name for task in both] == ["A, seed 1", "B, seed 1", "A, seed 2", "B, seed 2"]


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


class Dependent:
    """A suite in which B uses the checkpoint of A, and a parser that completes configurations by reading the parts."""

    def __init__(self, seeds=(1, 2)):
        part = {"reference": "checkpoint of A", "trainer": {"max_epochs": 3}}
        cells = Cell("B", "", (part,), needs=("A",)), Cell("A", "", ({"trainer": {"max_epochs": 3}},))
        self.suite = Suite("suite", "Suite", cells, seeds, ("val/accuracy",), ())

    def parse(self, command_lines):
        return [Parsed(Path(arguments[1]).read_text()) for arguments in command_lines]


def settings(task):
    return yaml.safe_load(Path(task.arguments[1]).read_text())


def finish_with_settings(tasks):
    for task in tasks:
        task.folder.path.mkdir(parents=True)
        task.folder.config.write_text(yaml.safe_dump(settings(task)))
        task.write_record(finished=True)


def test_a_reference_is_the_checkpoint_with_the_same_seed(tmp_path):
    dependent = Dependent()
    tasks = plan(dependent.suite, tmp_path / "out", parse=dependent.parse)
    references = {task.name: settings(task)["reference"] for task in tasks if task.cell.row == "B"}
    assert references == {
        f"B, seed {seed}": str(tmp_path / f"out/A/seed_{seed}/checkpoints/last.ckpt") for seed in (1, 2)
    }
    assert [task.needs for task in tasks if task.seed == 2] == [(RunFolder(tmp_path / "out/A/seed_2"),), ()]


def test_runs_that_use_checkpoints_are_recognised_when_they_have_finished(tmp_path):
    dependent = Dependent()
    tasks = plan(dependent.suite, tmp_path / "out", parse=dependent.parse)
    finish_with_settings(tasks)
    assert plan(dependent.suite, tmp_path / "out", parse=unused) == tasks
    tasks[0].folder.record.write_text('{"finished": true}')  # without the origin, all settings are compared
    assert plan(dependent.suite, tmp_path / "out", parse=dependent.parse) == tasks


def test_a_run_whose_reference_has_to_be_run_again_is_refused(tmp_path):
    dependent = Dependent(seeds=(1,))
    second, first = plan(dependent.suite, tmp_path / "out", parse=dependent.parse)
    finish_with_settings([second, first])
    first.write_record(finished=False)
    message = f"{second.folder} used the checkpoint of {first.folder}, which is no longer finished: remove"
    with pytest.raises(MisconfigurationError, match=message):
        plan(dependent.suite, tmp_path / "out", parse=dependent.parse)


def test_a_skipped_cell_has_no_run(base, tmp_path):
    cells = Cell("A", "", (base,), skip="too slow"), Cell("B", "", (base,))
    tasks = plan(Suite("suite", "Suite", cells, (1,), ("val/accuracy",), ()), tmp_path / "out", parse=Parser())
    assert [task.name for task in tasks] == ["B, seed 1"]
