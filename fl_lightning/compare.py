"""``fl-lightning compare``: runs a suite and prints and saves its table."""

import argparse
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.commands import FederatedCLI
from fl_lightning.reporting.curves import Curve
from fl_lightning.reporting.jobs import Task, run_all
from fl_lightning.reporting.page import write_page
from fl_lightning.reporting.runs import CONFIG, RECORD, Run, read_run, settings_of
from fl_lightning.reporting.suite import Cell, Suite, load_suite
from fl_lightning.reporting.table import Line, as_csv, as_json, as_markdown, summarise
from fl_lightning.tags import evaluated


def main(args: Sequence[str] | None = None) -> None:
    """The command. Exit codes: 1 a run failed, 2 a mistake, 130 Ctrl-C, 143 SIGTERM."""
    options, further = _parser().parse_known_args(args)
    if options.jobs < 1:
        raise MisconfigurationException(f"jobs={options.jobs}: set --jobs to 1 or more")
    suite = load_suite(options.suite, options.seeds)
    output = options.output or Path("runs", "suites", suite.name)  # not among the runs of fit
    tasks = plan(suite, output, further)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        failed = run_all(tasks, options.jobs)
    except (KeyboardInterrupt, SystemExit) as stop:
        done = sum(task.finished for task in tasks)
        print(f"Interrupted: {done} of {len(tasks)} runs are done; the same command goes on.", file=sys.stderr)
        sys.exit(stop.code if isinstance(stop, SystemExit) else 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(conclude(suite, tasks, output), flush=True)
    if failed:
        print(f"{len(failed)} of {len(tasks)} runs failed: {'; '.join(task.name for task in failed)}", file=sys.stderr)
        sys.exit(1)


def plan(suite: Suite, output: Path, further: Sequence[str] = ()) -> list[Task]:
    """All runs of a suite, those of the first seed first. A mistake in any of them is found before one is started.

    Args:
        suite: what is compared.
        output: the folder for all of it.
        further: options of ``fl-lightning fit`` that every run gets.
    """
    folders: dict[Path, Cell] = {}
    for cell in suite.cells:
        other = folders.setdefault(_folder(cell, output), cell)
        if other is not cell:
            raise MisconfigurationException(f"{other.name} and {cell.name} have the same folder: rename one")
    configured = [_Configured(cell, output, further) for cell in suite.cells]
    return [one.task(seed) for seed in suite.seeds for one in configured]


def conclude(suite: Suite, tasks: Sequence[Task], output: Path) -> str:
    """Writes table and report of what has run; gives what is said of them."""
    lines: list[Line] = []
    curves: list[Curve] = []
    notes: list[str] = []
    for cell in suite.cells:
        runs: list[Run] = []
        for task in tasks:
            if task.cell == cell:
                try:
                    runs.append(read_run(task.folder))
                except MisconfigurationException as error:
                    notes.append(str(error))
        lines.append(
            summarise(cell.row, cell.column, runs, len(suite.seeds), suite.metrics, suite.targets, cell.published)
        )
        if runs:
            curves.append(Curve(cell.row, cell.column, tuple(runs)))
    logged = dict.fromkeys(tag for curve in curves for run in curve.runs for tag in run.scalars)
    notes += _absent(suite, lines, evaluated(logged))
    markdown = as_markdown(lines)
    files = {
        "table.md": f"# {suite.title}\n\n{markdown}",
        "table.csv": as_csv(lines),
        "table.json": as_json(suite.title, lines),
    }
    for name, text in files.items():
        (output / name).write_text(text)
    said = [f"\n{suite.title}: {', '.join(suite.metrics)}\n", markdown, *(f"Note: {note}" for note in notes)]
    said.append(f"Table:    {output}/table.md, table.csv, table.json")
    if curves:
        write_page(output / "report.html", suite.title, curves, lines, suite.metrics, suite.targets, notes)
        said.append(f"Report:   {output / 'report.html'}")
    said.append(f"Curves:   tensorboard --logdir {output}")
    return "\n".join(said)


def _absent(suite: Suite, lines: Sequence[Line], logged: Sequence[str]) -> list[str]:
    return [
        f"{line.row}{', ' if line.column else ''}{line.column} did not log {metric}: set metric to one of"
        f" {', '.join(logged)}"
        for line in lines
        for metric in suite.metrics
        if line.finished and metric not in line.scores
    ]


class _Configured:
    """A cell whose configuration is complete and known to be right."""

    def __init__(self, cell: Cell, output: Path, further: Sequence[str]) -> None:
        self.cell = cell
        self._further = further
        self.folder = _folder(cell, output)
        self._parts = [self._file(number, part) for number, part in enumerate(cell.parts)]
        self._parsed = _parse(cell, self._arguments(seed=0))
        self._config = self._parsed.dump()

    def task(self, seed: int) -> Task:
        rounds = self._config["trainer"]["max_epochs"]
        if not isinstance(rounds, int) or rounds < 1:
            raise MisconfigurationException(f"{self.cell.name}: trainer.max_epochs={rounds}: set it to 1 or more")
        task = Task(self.cell, seed, self.folder / f"seed_{seed}", self._arguments(seed), rounds)
        self._check(task)
        return task

    def _check(self, task: Task) -> None:
        """Refuses a folder with a run that is configured otherwise: its rounds are those of another experiment."""
        file = task.folder / CONFIG
        if not file.is_file():
            return
        if not (task.folder / RECORD).is_file():
            raise MisconfigurationException(f"{task.folder} holds a run of another command: choose another --output")
        if not task.finished and not task.checkpoint.is_file():
            return  # it starts anew
        was, now = settings_of(yaml.safe_load(file.read_text())), settings_of(self._config)
        for key in (*now, *was):
            if was.get(key, _MISSING) != now.get(key, _MISSING) and not (key not in was and self._is_default(key)):
                raise MisconfigurationException(
                    f"{task.folder} was run with {key}={_said(was, key)}, the suite has {_said(now, key)}:"
                    " remove that folder, or choose another --output"
                )

    def _is_default(self, key: str) -> bool:
        """An option that there was not yet when the run was made changes nothing while it has its default."""
        return key not in settings_of(self._parsed.dump(skip_default=True))

    def _arguments(self, seed: int) -> tuple[str, ...]:
        """Of ``fl-lightning fit``. Resumed, a run has the same."""
        logger = {
            "save_dir": self.folder.resolve(),
            "name": "",
            "version": f"seed_{seed}",
            "default_hp_metric": "false",
        }
        return (
            *(argument for part in self._parts for argument in ("--config", str(part))),
            *self._further,
            *("--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"),
            *("--trainer.logger", "TensorBoardLogger"),
            *(argument for key, value in logger.items() for argument in (f"--trainer.logger.{key}", str(value))),
        )

    def _file(self, number: int, part: Path | dict[str, Any]) -> Path:
        """What is written in the suite becomes a file, so that several ``--config`` say all there is to say."""
        if isinstance(part, Path):
            return part
        file = self.folder / f"part_{number + 1}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(part, sort_keys=False))
        return file.resolve()


class _Parsed(BaseException):
    """Carries a configuration out of a command that is not to run."""

    def __init__(self, parser: ArgumentParser, config: Namespace) -> None:
        self._parser, self._config = parser, config

    def dump(self, skip_default: bool = False) -> dict[str, Any]:
        """As a run's ``config.yaml`` has it."""
        return yaml.safe_load(self._parser.dump(self._config, skip_none=False, skip_default=skip_default))


class _ParseOnly(FederatedCLI):
    """Stops when the configuration is complete and checked, before anything is made of it."""

    def _set_seed(self) -> None:
        """Nothing runs here."""

    def before_instantiate_classes(self) -> None:
        raise _Parsed(self._parser(self.subcommand), self.config[self.subcommand])


def _parse(cell: Cell, arguments: Sequence[str]) -> _Parsed:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LightningCLI's args parameter is intended")
            _ParseOnly(["fit", *arguments])
    except _Parsed as parsed:
        return parsed
    except MisconfigurationException as error:
        raise MisconfigurationException(f"{cell.name}: {error}") from error
    raise AssertionError("a command ran that was only to be parsed")


_MISSING = object()


def _said(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "nothing"


def _folder(cell: Cell, output: Path) -> Path:
    return Path(
        output, *(re.sub(r"[^\w.+=-]+", "_", name).strip("_.") or "_" for name in (cell.row, cell.column) if name)
    )


def _terminate(*_: object) -> NoReturn:
    sys.exit(143)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-lightning compare",
        description="Runs a suite, skips what is done, resumes what was cut off, and prints and saves a table.",
        epilog="Every other option goes to each run, as to fl-lightning fit: --data.source.root ~/data.",
    )
    parser.add_argument(
        "suite", type=Path, metavar="SUITE.yaml", help="title, base, columns, rows, seeds, metric, targets, published"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="how many, instead of what the suite says")
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="how many runs at once; they share the cores (default: 1)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the folder for all of it (default: runs/suites/<name of the suite>)"
    )
    return parser


if __name__ == "__main__":
    main()
