"""``fl-lightning compare``: run a suite, then print and save a table of its results."""

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fl_lightning._lightning.cli import ParseOnly
from fl_lightning.cli.app import FederatedCLI
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.jobs import Task, run_all
from fl_lightning.experiments.results import CellResult, summarise
from fl_lightning.experiments.runs import Run, evaluated_tags, flat_settings, read_run
from fl_lightning.experiments.suite import Cell, Suite, load_suite
from fl_lightning.experiments.table import as_csv, as_json, as_markdown
from fl_lightning.reports.curves import Curve
from fl_lightning.reports.page import write_page


def main(args: Sequence[str] | None = None) -> None:
    """Run the command. It exits with code 1 if a run failed, 130 after Ctrl-C and 143 after SIGTERM."""
    options, fit_options = _argument_parser().parse_known_args(args)
    if options.jobs < 1:
        raise MisconfigurationError(f"jobs={options.jobs}: set --jobs to 1 or more")
    suite = load_suite(options.suite, options.seeds)
    output = options.output or Path("runs", "suites", suite.name)  # separate from the runs of fit
    tasks = plan(suite, output, fit_options)
    previous_handler = signal.signal(signal.SIGTERM, _terminate)
    try:
        failed = run_all(tasks, options.jobs)
    except (KeyboardInterrupt, SystemExit) as stop:
        finished = sum(task.finished for task in tasks)
        print(
            f"Interrupted: {finished} of {len(tasks)} runs have finished; run the same command again to continue.",
            file=sys.stderr,
        )
        sys.exit(stop.code if isinstance(stop, SystemExit) else 130)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    print(write_results(suite, tasks, output), flush=True)
    if failed:
        print(f"{len(failed)} of {len(tasks)} runs failed: {'; '.join(task.name for task in failed)}", file=sys.stderr)
        sys.exit(1)


def plan(suite: Suite, output: Path, fit_options: Sequence[str] = ()) -> list[Task]:
    """Return all runs of a suite, ordered by seed. All configurations are checked before the first run starts.

    Args:
        suite: the suite to run.
        output: the folder of the comparison.
        fit_options: options of ``fl-lightning fit`` for every run.
    """
    folders: dict[Path, Cell] = {}
    for cell in suite.cells:
        other = folders.setdefault(_folder(cell, output), cell)
        if other is not cell:
            raise MisconfigurationError(f"{other.name} and {cell.name} have the same folder: rename one")
    cells = [_ParsedCell(cell, output, fit_options) for cell in suite.cells]
    return [cell.task(seed) for seed in suite.seeds for cell in cells]


def write_results(suite: Suite, tasks: Sequence[Task], output: Path) -> str:
    """Write the table and the report of all runs that have results, and return a summary to print."""
    results: list[CellResult] = []
    curves: list[Curve] = []
    notes: list[str] = []
    for cell in suite.cells:
        runs: list[Run] = []
        for task in tasks:
            if task.cell == cell:
                try:
                    runs.append(read_run(task.folder.path))
                except MisconfigurationError as error:
                    notes.append(str(error))
        results.append(
            summarise(cell.row, cell.column, runs, len(suite.seeds), suite.metrics, suite.targets, cell.published)
        )
        if runs:
            curves.append(Curve(cell.row, cell.column, tuple(runs)))
    notes += _missing_metrics(suite, results, evaluated_tags(run for curve in curves for run in curve.runs))
    markdown = as_markdown(results)
    (output / "table.md").write_text(f"# {suite.title}\n\n{markdown}")
    (output / "table.csv").write_text(as_csv(results))
    (output / "table.json").write_text(as_json(suite.title, results))
    lines = [f"\n{suite.title}: {', '.join(suite.metrics)}\n", markdown, *(f"Note: {note}" for note in notes)]
    lines.append(f"Table:    {output}/table.md, table.csv, table.json")
    if curves:
        write_page(output / "report.html", suite.title, curves, results, suite.metrics, suite.targets, notes)
        lines.append(f"Report:   {output / 'report.html'}")
    lines.append(f"Curves:   tensorboard --logdir {output}")
    return "\n".join(lines)


def _missing_metrics(suite: Suite, results: Sequence[CellResult], logged: Sequence[str]) -> list[str]:
    return [
        f"{result.name} did not log {metric}: set metric to one of {', '.join(logged)}"
        for result in results
        for metric in suite.metrics
        if result.finished and metric not in result.scores
    ]


class _ParsedFit(ParseOnly, FederatedCLI):
    """``fl-lightning fit``, parsed and checked but not run."""


class _ParsedCell:
    """A cell with its complete configuration, which has been checked."""

    def __init__(self, cell: Cell, output: Path, fit_options: Sequence[str]) -> None:
        self._cell = cell
        self._fit_options = fit_options
        self._folder = _folder(cell, output)
        self._config_files = [self._config_file(number, part) for number, part in enumerate(cell.parts)]
        try:
            self._parsed = _ParsedFit(["fit", *self._arguments(seed=0)])
        except MisconfigurationError as error:
            raise MisconfigurationError(f"{cell.name}: {error}") from error
        self._config = self._parsed.dump()

    def task(self, seed: int) -> Task:
        """Return the run of this cell with one seed."""
        rounds = self._config["trainer"]["max_epochs"]
        if not isinstance(rounds, int) or rounds < 1:
            raise MisconfigurationError(f"{self._cell.name}: trainer.max_epochs={rounds}: set it to 1 or more")
        folder = RunFolder(self._folder / f"seed_{seed}")
        task = Task(self._cell, seed, folder, self._arguments(seed), rounds)
        self._check_earlier_run(task)
        return task

    def _check_earlier_run(self, task: Task) -> None:
        """Reject a folder with a run that has other settings, because its rounds belong to another experiment."""
        if not task.folder.config.is_file():
            return
        if not task.folder.record.is_file():
            raise MisconfigurationError(f"{task.folder} has a run that compare did not start: choose another --output")
        if not task.finished and not task.folder.checkpoint.is_file():
            return  # the run starts again from its first round
        old, new = flat_settings(yaml.safe_load(task.folder.config.read_text())), flat_settings(self._config)
        for key in (*new, *old):
            added_since = key not in old and self._has_default(key)
            if old.get(key, _MISSING) != new.get(key, _MISSING) and not added_since:
                raise MisconfigurationError(
                    f"{task.folder} was run with {key}={_format_setting(old, key)}, but the suite has"
                    f" {_format_setting(new, key)}: remove that folder, or choose another --output"
                )

    def _has_default(self, key: str) -> bool:
        """Return whether an option has its default value, so that adding it after a run does not change the run."""
        return key not in flat_settings(self._parsed.dump(skip_default=True))

    def _arguments(self, seed: int) -> tuple[str, ...]:
        """Return the arguments of ``fl-lightning fit``, which do not depend on whether the run is resumed."""
        logger = {
            "save_dir": self._folder.resolve(),
            "name": "",
            "version": f"seed_{seed}",
            "default_hp_metric": "false",
        }
        return (
            *(argument for file in self._config_files for argument in ("--config", str(file))),
            *self._fit_options,
            *("--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"),
            *("--trainer.logger", "TensorBoardLogger"),
            *(argument for key, value in logger.items() for argument in (f"--trainer.logger.{key}", str(value))),
        )

    def _config_file(self, number: int, part: Path | dict[str, Any]) -> Path:
        """Return the file of a part of the configuration, after writing it if the suite contains the part itself."""
        if isinstance(part, Path):
            return part
        file = self._folder / f"part_{number + 1}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(part, sort_keys=False))
        return file.resolve()


_MISSING = object()


def _format_setting(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "nothing"


def _folder(cell: Cell, output: Path) -> Path:
    """Return the folder of a cell: its row and column, without characters that are awkward in paths."""
    names = [name for name in (cell.row, cell.column) if name]
    return Path(output, *(re.sub(r"[^\w.+=-]+", "_", name).strip("_.") or "_" for name in names))


def _terminate(*_: object) -> NoReturn:
    sys.exit(143)


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-lightning compare",
        description="Run a suite, skip finished runs, resume interrupted ones, then print and save a table.",
        epilog="All other options are passed to fl-lightning fit in every run, for example --data.source.root ~/data.",
    )
    parser.add_argument(
        "suite", type=Path, metavar="SUITE.yaml", help="title, base, columns, rows, seeds, metric, targets, published"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds, overriding those in the suite")
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="number of parallel runs, which share the cores (default: 1)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for runs, table and report (default: runs/suites/<name of the suite>)",
    )
    return parser
