import json
import re
import time
from types import SimpleNamespace

import pytest
import torch
import yaml

from fl_lightning._lightning.cli import ParseOnly
from fl_lightning.cli.app import FederatedCLI
from fl_lightning.cli.compare import write_results
from fl_lightning.cli.dry import FewClients, shortened
from fl_lightning.cli.main import main
from fl_lightning.cli.parse import parse_all
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.data import SequentialClients
from fl_lightning.experiments import jobs
from fl_lightning.experiments import plan as planning
from fl_lightning.experiments.cells import Cell, Position, Published, Spread, Suite
from fl_lightning.experiments.jobs import Task
from fl_lightning.experiments.suite import load_suite
from tests.experiments.fakes import write_run
from tests.runs import REPOSITORY, scalars, write_config


class Parsed(ParseOnly, FederatedCLI):
    """A command line that is parsed but not run."""


def plan(suite, output, fit_options=(), chosen=None):
    """Plan a suite, with the parser in this process, because another one would take seconds to import Lightning."""
    return planning.plan(suite, output, fit_options, parse=parse_all, chosen=chosen)


@pytest.fixture
def write_suite(tmp_path, monkeypatch):
    """Write a tiny suite of two methods, with some of its keys changed; return its path."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_config(tmp_path / "base.yaml", trainer={"max_epochs": 3})
    suite = {
        "title": "Tiny",
        "base": ["base.yaml"],
        "rows": {
            "FedAvg": [{"client": {"epochs": 1}}],
            "NormNorm (ours)": [{"server": {"aggregator": {"class_path": "NormNorm", "init_args": {"beta": 1.0}}}}],
        },
        "metric": "val_accuracy",
        "targets": [0.01],
    }

    def write(**changes):
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite | changes))
        return tmp_path / "suite.yaml"

    return write


@pytest.fixture
def compare(write_suite, tmp_path, capfd, monkeypatch):
    """Run ``fl-lightning compare`` on the tiny suite, changed or not; return its exit code and what it printed."""

    monkeypatch.setattr("fl_lightning.cli.compare.plan", plan)

    def call(*arguments, **changes):
        write_suite(**changes)
        code = 0
        try:
            main(["compare", str(tmp_path / "suite.yaml"), "--output", str(tmp_path / "out"), *arguments])
        except SystemExit as exit:
            code = exit.code or 0
        return code, *capfd.readouterr()

    return call


@pytest.mark.slow
def test_an_interrupted_suite_resumes_and_a_finished_one_is_not_run_again(compare, tmp_path, monkeypatch):
    first, second = tmp_path / "out/FedAvg/seed_1", tmp_path / "out/NormNorm_ours/seed_1"

    def interrupt(seconds):
        time.sleep(0.01)
        if (first / "checkpoints/last.ckpt").is_file():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
        code, _, err = compare()
    assert code == 130
    assert "Interrupted: 0 of 2 runs have finished; run the same command again to continue.\n" in err

    code, out, err = compare("--jobs", "2")
    assert code == 0, err
    assert "resumed at round" in (first / "fit.log").read_text()
    for folder in (first, second):
        assert [step for step, _ in scalars(folder)["val_accuracy"]] == [0, 1, 2]
    assert "| rounds to 1 % |" in out
    assert f"Report:   {tmp_path}/out/report.html\n" in out
    assert f"tensorboard --logdir {tmp_path}/out\n" in out
    assert "NormNorm (ours)" in (tmp_path / "out/table.md").read_text()
    cells = json.loads((tmp_path / "out/table.json").read_text())["cells"]
    final = scalars(second)["val_accuracy"][-1][1]
    assert cells[1]["scores"]["val_accuracy"]["final"]["mean"] == pytest.approx(final)
    assert (tmp_path / "out/table.csv").read_text().count("\n") == 3

    logs = [(folder / "fit.log").read_bytes() for folder in (first, second)]
    code, out, _ = compare()
    assert code == 0
    assert "2 of 2 runs have already finished" in out
    assert [(folder / "fit.log").read_bytes() for folder in (first, second)] == logs

    # the same folders, but another experiment
    code, _, err = compare(rows={"FedAvg": [{"client": {"epochs": 7}}]})
    assert code == 2
    fix = "remove that folder, or choose another --output"
    assert err == f"error: {first} was run with client.epochs=1, but the suite has 7: {fix}\n"


def test_a_task_runs_and_resumes_in_its_folder_and_is_recognised(write_suite, tmp_path):
    suite = load_suite(write_suite(), seeds=2)
    task = plan(suite, tmp_path / "out")[-1]
    main(["fit", *task.arguments])
    task.write_record(finished=False)
    main(["fit", *task.arguments, "--ckpt_path", str(task.folder.checkpoint)])
    assert task.folder.path == tmp_path / "out/NormNorm_ours/seed_2"
    assert len(scalars(task.folder.path)["val_accuracy"]) == 3
    assert [path.name for path in task.folder.path.glob("config*.yaml")] == ["config.yaml"]
    task.write_record(finished=True)
    assert plan(suite, tmp_path / "out")[-1].finished


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rows": {"A": [], "B": [{"client": {"epochs": "many"}}]}},
            "B: client.epochs: many is not of type int",
        ),
        ({"rows": {"A": [{"nonsense": 1}]}}, "A: "),
        ({"rows": {"A": [{"server": {"aggregator": {"class_path": "NormNorm"}}}]}}, "arguments are required: beta"),
        ({"rows": {"a b": [], "a_b": []}}, "a b and a_b have the same folder: rename one"),
        ({"rows": {"A": [{"trainer": {"max_epochs": -1}}]}}, "A: trainer.max_epochs=-1: set it to 1 or more"),
        ({"rows": {"A": ["nowhere.yaml"]}}, "rows.A: nowhere.yaml: there is no such file"),
    ],
)
def test_a_mistake_in_any_run_is_found_before_the_first_run_starts(compare, tmp_path, changes, message):
    code, _, err = compare(**changes)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("out/*/seed_*"))


def test_jobs_must_be_one_or_more(compare):
    assert compare("--jobs", "0")[2] == "error: jobs=0: set --jobs to 1 or more\n"


def test_a_run_of_another_command_is_left_alone(compare, tmp_path):
    folder = tmp_path / "out/A/seed_1"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    code, _, err = compare(rows={"A": []})
    assert code == 2
    assert f"{folder} has a run that compare did not start: choose another --output" in err


def test_an_option_that_is_newer_than_a_run_is_a_difference_only_if_it_is_set(write_suite, tmp_path):
    suite = load_suite(write_suite(rows={"A": [{"client": {"epochs": 7}}]}))
    (task,) = plan(suite, tmp_path / "out")
    current = Parsed(["fit", *task.arguments]).dump()
    task.folder.checkpoint.parent.mkdir(parents=True)
    task.folder.checkpoint.touch()
    for section, key, same in (("server", "weighting", True), ("client", "epochs", False)):
        task.folder.config.write_text(yaml.safe_dump(current | {section: _without(current[section], key)}))
        task.write_record(finished=False)
        if same:
            assert plan(suite, tmp_path / "out") == [task]
        else:
            with pytest.raises(MisconfigurationError, match=r"with client\.epochs=nothing, but the suite has 7"):
                plan(suite, tmp_path / "out")


def test_checking_a_suite_creates_no_object_and_leaves_the_seed_alone(write_suite, tmp_path):
    unaffordable = {"model": {"class_path": "tests.cli.toys.Unaffordable"}}
    torch.manual_seed(5)
    assert plan(load_suite(write_suite(rows={"A": [unaffordable]})), tmp_path / "out")
    assert torch.initial_seed() == 5


def _without(section, key):
    return {name: value for name, value in section.items() if name != key}


def test_other_options_are_passed_to_every_run(write_suite, compare, tmp_path):
    suite = load_suite(write_suite())
    tasks = plan(suite, tmp_path / "out", ["--trainer.max_epochs", "5"])
    assert [task.rounds for task in tasks] == [5, 5]
    code, _, err = compare("--sedes", "3")
    assert code == 2
    assert err == "error: FedAvg: unrecognized arguments: --sedes 3\n"


def test_a_metric_that_no_run_logged_is_noted_with_the_validation_metrics(tmp_path):
    cells = (Cell("FedAvg", "IID", ()), Cell("Central", "IID", ()))
    tasks = [Task(cell, 1, RunFolder(tmp_path / cell.row / "seed_1"), (), rounds=1) for cell in cells]
    for task, diagnostics in zip(tasks, ({"divergence__statistics": [1.0]}, {}), strict=True):
        write_run(task.folder.path, [0.5], **diagnostics)
        task.write_record(finished=True)
    suite = Suite("suite", "Title", cells, (1,), ("val/accuracy", "val/f1", "divergence/statistics"), ())
    text = write_results(suite, tasks, tmp_path)
    assert re.findall("Note: .*", text) == ["Note: no run logged val/f1: set metric to one of val/accuracy"]


def test_a_dry_run_tries_every_cell_and_keeps_nothing(compare, tmp_path, monkeypatch):
    checkpoint = {"class_path": "DivergenceDiagnostics", "init_args": {"reference": "checkpoint of FedAvg, Central"}}
    columns = {
        "5 clients": [{"trainer": {"callbacks+": [checkpoint]}}],
        "Central": [{"data": {"partition": {"class_path": "IID", "init_args": {"num_clients": 1}}, "selection": None}}],
    }
    # the suite's file is sorted by name, so the reference comes last
    code, out, err = compare(
        "--dry", columns=columns, rows={"FedAvg": [], "Z": []}, skip={"Z": {"Central": "cannot", "5 clients": "cannot"}}
    )
    assert code == 0, out + err
    assert "FedAvg, Central, seed 1: 2 rounds" in out
    assert out.endswith("dry run: 2 of 2 cells ran two rounds; the suite skips 2 more\n")
    assert "table" not in out
    assert not (tmp_path / "out").exists()


def test_a_dry_run_fails_with_the_cell_that_fails(compare):
    broken = [{"data": {"partition": {"class_path": "IID", "init_args": {"num_clients": 10_000}}}}]
    code, out, _ = compare("--dry", rows={"A": [], "B": broken})
    assert code == 1
    assert "B, seed 1: FAILED (exit code 2)\n    error: " in out
    assert out.endswith("dry run: 1 of 2 cells ran two rounds\n")


def test_a_dry_run_has_few_clients_chosen_by_the_selection_of_the_cell():
    few = FewClients(SequentialClients(count=5))
    assert few.cohort(num_clients=8, seed=0, round=1) == [5, 6]
    assert FewClients().cohort(num_clients=1, seed=0, round=0) == [0]


def test_a_dry_run_evaluates_small_batches_of_sources_that_allow_it():
    digits = {"class_path": "Digits", "init_args": {"batch_size": 16, "evaluation_batch_size": 512}}
    assert shortened({"data": {"source": digits}})["data"]["source"] == {"init_args": {"evaluation_batch_size": 4}}
    assert "source" not in shortened({"data": {"source": {"class_path": "Own"}}})["data"]


def test_a_mistake_is_found_by_a_dry_run_too(compare):
    code, _, err = compare("--dry", rows={"A": [{"client": {"epochs": "many"}}]})
    assert code == 2
    assert err == "error: A: client.epochs: many is not of type int or list\n"


@pytest.fixture
def started(monkeypatch):
    """Record which runs are started, and start none."""
    names = []
    monkeypatch.setattr(
        "fl_lightning.cli.compare.run_all", lambda tasks, jobs: names.extend(task.name for task in tasks) or []
    )
    return names


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["A"], ["A, x", "A, y"]),
        (["y"], ["A, y", "B, x", "B, y"]),
        (["B, y"], ["B, x", "B, y"]),
        (["A, x", "B, x"], ["A, x", "B, x"]),
        ([], ["A, x", "B, x", "A, y", "B, y"]),
    ],
)
def test_only_chooses_rows_columns_or_cells_and_what_they_need(compare, started, only, names):
    options = [argument for name in only for argument in ("--only", name)]
    content = {"columns": {"x": [], "y": []}, "rows": {"A": [], "B": []}}
    code, out, err = compare(*options, **content, cells={"B": {"y": [{"ckpt_path": "checkpoint of B, x"}]}})
    assert code == 0, err
    assert sorted(started) == sorted(f"{name}, seed 1" for name in names)
    assert out.count("0 of 1") == 4  # the table has all cells


def test_only_names_the_rows_and_columns_if_there_is_no_such_cell(compare):
    code, _, err = compare("--only", "C", columns={"x": []}, rows={"A": [], "B": []})
    assert code == 2
    assert err == "error: only=C: there is no such row, column or cell; the rows and columns are A; x; B\n"


def write_cells(tmp_path, cells, **more):
    """Write the results of cells that have all finished in one round, except for those that are skipped."""
    tasks = []
    for number, cell in enumerate(cells):
        if cell.skip is None:
            tasks.append(Task(cell, 1, RunFolder(tmp_path / str(number)), (), rounds=1))
            write_run(tasks[-1].folder.path, [0.5 + 0.01 * number])
            tasks[-1].write_record(finished=True)
    return write_results(
        Suite("suite", "Title", tuple(cells), (1,), ("val/accuracy",), (0.5,), **more), tasks, tmp_path
    )


def test_the_report_has_reasons_sources_differences_and_the_reduction(tmp_path):
    published = Published({"val/accuracy": Spread(0.8644)}, {}, "Table 1")
    cells = [Cell("FedAvg", "", ()), Cell("B", "", ()), Cell("FedMA", "", (), published, skip="needs a chain")]
    printed = write_cells(tmp_path, cells, baseline="FedAvg")
    page = (tmp_path / "report.html").read_text()
    for text in ("needs a chain", "published (Table 1)", "86.44 %", "final vs FedAvg", "+1.00 pp", "+0.0 %"):
        assert text in printed
        assert text in page
    assert "Note:" not in printed


def test_the_values_of_a_parameter_are_lines_of_one_figure_and_points_of_another(tmp_path):
    cells = [Cell("FedAvg", "", ()), *(Cell("FedAdp", str(x), (), x=Position("α", x)) for x in (1, 5))]
    write_cells(tmp_path, cells, baseline="FedAvg")
    page = (tmp_path / "report.html").read_text()
    assert "Results against α" in page
    assert "α = 5" in page
    assert page.count("val/accuracy over rounds") == 1


def test_a_run_that_was_not_started_for_want_of_another_is_noted(tmp_path):
    cell = Cell("B", "", (), needs=("A",))
    task = Task(cell, 1, RunFolder(tmp_path / "B"), (), rounds=1, needs=(RunFolder(tmp_path / "A"),))
    text = write_results(Suite("suite", "Title", (cell,), (1,), ("val/accuracy",), ()), [task], tmp_path)
    assert "Note: B, seed 1 was not run, because it needs A, seed 1\n" in text


def test_a_run_that_stopped_at_its_target_is_finished(write_suite, tmp_path):
    suite = load_suite(write_suite(stop_at_target=True, rows={"A": []}))
    (task,) = plan(suite, tmp_path / "out")
    main(["fit", *task.arguments])
    task.write_record(finished=True)
    first = write_results(suite, [task], tmp_path / "out")
    tables = [(tmp_path / "out" / name).read_text() for name in ("table.csv", "table.json", "report.html")]
    assert len(scalars(task.folder.path)["val_accuracy"]) == 1  # of three rounds, because the target is 1 %
    assert "unfinished" not in tables[-1]
    (again,) = plan(suite, tmp_path / "out")
    assert again.finished
    assert write_results(suite, [again], tmp_path / "out") == first
    assert [(tmp_path / "out" / name).read_text() for name in ("table.csv", "table.json", "report.html")] == tables
