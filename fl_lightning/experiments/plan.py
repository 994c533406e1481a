"""The runs of a suite, checked before the first of them starts."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from fl_lightning import __version__
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.jobs import Task
from fl_lightning.experiments.parsing import Parsed, parse_in_child
from fl_lightning.experiments.runs import read_record
from fl_lightning.experiments.settings import differences, flat_settings
from fl_lightning.experiments.suite import Cell, Part, Suite


def plan(
    suite: Suite,
    output: Path,
    fit_options: Sequence[str] = (),
    parse: Callable[[Sequence[Sequence[str]]], list[Parsed]] = parse_in_child,
) -> list[Task]:
    """Return all runs of a suite, ordered by seed.

    All configurations are checked before the first run starts. If every run has finished and was started from the same
    suite, there is nothing to check.

    Args:
        suite: the suite to run.
        output: the folder of the comparison.
        fit_options: options of ``fl-lightning fit`` for every run.
        parse: checks and completes the arguments of runs.
    """
    folders: dict[Path, Cell] = {}
    for cell in suite.cells:
        other = folders.setdefault(_folder(cell, output), cell)
        if other is not cell:
            raise MisconfigurationError(f"{other.name} and {cell.name} have the same folder: rename one")
    cells = [_PlannedCell(cell, output, fit_options) for cell in suite.cells]
    recorded = [cell.finished_task(seed) for seed in suite.seeds for cell in cells]
    finished = [task for task in recorded if task is not None]
    if len(finished) == len(recorded):
        return finished
    answers = parse([cell.arguments(seed=0) for cell in cells])
    return [cell.task(seed, parsed) for seed in suite.seeds for cell, parsed in zip(cells, answers, strict=True)]


class _PlannedCell:
    """A cell with the arguments of its runs."""

    def __init__(self, cell: Cell, output: Path, fit_options: Sequence[str]) -> None:
        self._cell = cell
        self._fit_options = fit_options
        self._folder = _folder(cell, output)
        self._config_files = [self._config_file(number, part) for number, part in enumerate(cell.parts)]
        self._origin = _origin(cell.parts, fit_options)

    def finished_task(self, seed: int) -> Task | None:
        """Return a run that has finished and was started from the same configuration; None if it is not certain."""
        record = read_record(self._run_folder(seed))
        same = self._origin is not None and record.get("origin") == self._origin
        return self._task(seed, int(record.get("rounds", 0))) if same and record.get("finished") else None

    def task(self, seed: int, parsed: Parsed) -> Task:
        """Return the run with one seed, after checking its configuration and what is in its folder."""
        if parsed.error is not None:
            raise MisconfigurationError(f"{self._cell.name}: {parsed.error}")
        rounds = yaml.safe_load(parsed.config)["trainer"]["max_epochs"]
        if not isinstance(rounds, int) or rounds < 1:
            raise MisconfigurationError(f"{self._cell.name}: trainer.max_epochs={rounds}: set it to 1 or more")
        task = self._task(seed, rounds)
        _check_earlier_run(task, parsed)
        return task

    def arguments(self, seed: int) -> tuple[str, ...]:
        """Return the arguments of ``fl-lightning fit``, which do not depend on whether the run is resumed."""
        logger = {
            "save_dir": self._folder.resolve(),
            "name": "",
            "version": self._run_folder(seed).path.name,
            "default_hp_metric": "false",
        }
        return (
            *(argument for file in self._config_files for argument in ("--config", str(file))),
            *self._fit_options,
            *("--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"),
            *("--trainer.logger", "TensorBoardLogger"),
            *(argument for key, value in logger.items() for argument in (f"--trainer.logger.{key}", str(value))),
        )

    def _task(self, seed: int, rounds: int) -> Task:
        return Task(self._cell, seed, self._run_folder(seed), self.arguments(seed), rounds, self._origin)

    def _run_folder(self, seed: int) -> RunFolder:
        return RunFolder(self._folder / f"seed_{seed}")

    def _config_file(self, number: int, part: Part) -> Path:
        """Return the file of a part of the configuration, after writing it if the suite contains the part itself."""
        if isinstance(part, Path):
            return part
        file = self._folder / f"part_{number + 1}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(part, sort_keys=False))
        return file.resolve()


def _check_earlier_run(task: Task, parsed: Parsed) -> None:
    """Reject a folder with a run that has other settings, because its rounds belong to another experiment."""
    if not task.folder.config.is_file():
        return
    if not task.folder.record.is_file():
        raise MisconfigurationError(f"{task.folder} has a run that compare did not start: choose another --output")
    if not task.finished and not task.folder.checkpoint.is_file():
        return  # the run starts again from its first round
    old, new = (flat_settings(yaml.safe_load(text)) for text in (task.folder.config.read_text(), parsed.config))
    for difference in differences(old, new, parsed.set_keys):
        raise MisconfigurationError(
            f"{task.folder} was run with {difference.key}={difference.old}, but the suite has {difference.new}:"
            " remove that folder, or choose another --output"
        )


def _origin(parts: Sequence[Part], fit_options: Sequence[str]) -> str | None:
    """Return a digest of all that a cell's configuration is made of; None if it depends on further files."""
    try:
        contents = [yaml.safe_load(part.read_text()) if isinstance(part, Path) else part for part in parts]
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    text = json.dumps([__version__, contents, list(fit_options)], default=str)
    if re.search(r"\.(ya?ml|json)\b", text):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _folder(cell: Cell, output: Path) -> Path:
    """Return the folder of a cell: its row and column, without characters that are awkward in paths."""
    names = [name for name in (cell.row, cell.column) if name]
    return Path(output, *(re.sub(r"[^\w.+=-]+", "_", name).strip("_.") or "_" for name in names))
