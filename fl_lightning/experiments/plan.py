"""The runs of a suite, checked before the first of them starts."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning import __version__
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.cells import Cell, Part, Suite
from fl_lightning.experiments.jobs import Task
from fl_lightning.experiments.parsing import Parsed, parse_in_child
from fl_lightning.experiments.references import map_texts, needed_cells, resolve
from fl_lightning.experiments.runs import read_record
from fl_lightning.experiments.settings import differences, flat_settings


def plan(
    suite: Suite,
    output: Path,
    fit_options: Sequence[str] = (),
    parse: Callable[[Sequence[Sequence[str]]], list[Parsed]] = parse_in_child,
    chosen: Collection[str] | None = None,
) -> list[Task]:
    """Return the runs of a suite, ordered by seed. Cells that cannot run have none.

    All their configurations are checked before the first run starts. If every run has finished and was started from the
    same suite, there is nothing to check.

    Args:
        suite: the suite to run.
        output: the folder of the comparison.
        fit_options: options of ``fl-lightning fit`` for every run.
        parse: checks and completes the arguments of runs.
        chosen: names of cells. Other cells are left out unless they have runs. By default, all are chosen.
    """
    folders: dict[Path, Cell] = {}
    for cell in suite.cells:
        other = folders.setdefault(_folder(cell, output), cell)
        if other is not cell:
            raise MisconfigurationError(f"{other.name} and {cell.name} have the same folder: rename one")
    by_name = {cell.name: folder for folder, cell in folders.items()}
    cells = [
        _PlannedCell(cell, output, fit_options, [by_name[name] for name in cell.needs])
        for cell in suite.cells
        if cell.skip is None
    ]
    cells = [cell for cell in cells if chosen is None or cell.name in chosen or cell.has_runs(suite.seeds)]
    recorded = [cell.finished_task(seed) for seed in suite.seeds for cell in cells]
    finished = [task for task in recorded if task is not None]
    if len(finished) == len(recorded):
        return finished
    first, *_ = suite.seeds
    answers = parse([cell.arguments(first) for cell in cells])
    return [
        cell.task(seed, parsed, parsed_seed=first)
        for seed in suite.seeds
        for cell, parsed in zip(cells, answers, strict=True)
    ]


class _PlannedCell:
    """A cell with the arguments of its runs."""

    def __init__(self, cell: Cell, output: Path, fit_options: Sequence[str], needs: Sequence[Path]) -> None:
        self.name = cell.name
        self._cell = cell
        self._fit_options = fit_options
        self._folder = _folder(cell, output)
        self._needs = dict(zip(cell.needs, needs, strict=True))
        self._origin = _origin(cell.parts, fit_options)

    def has_runs(self, seeds: Sequence[int]) -> bool:
        """Return whether a run with one of the seeds has been started."""
        return any(self._run_folder(seed).path.exists() for seed in seeds)

    def finished_task(self, seed: int) -> Task | None:
        """Return a run that has finished and was started from the same configuration; None if that is not certain."""
        record = read_record(self._run_folder(seed))
        same = self._origin is not None and record.get("origin") == self._origin
        return self._task(seed, int(record.get("rounds", 0))) if same and record.get("finished") else None

    def task(self, seed: int, parsed: Parsed, parsed_seed: int) -> Task:
        """Return the run with one seed, after checking its configuration and what is in its folder.

        Args:
            seed: the seed of the run.
            parsed: the configuration of a run of this cell.
            parsed_seed: the seed of that run. Its references point to runs with the same seed.
        """
        if parsed.error is not None:
            raise MisconfigurationError(f"{self._cell.name}: {parsed.error}")
        rounds = yaml.safe_load(parsed.config)["trainer"]["max_epochs"]
        if not isinstance(rounds, int) or rounds < 1:
            raise MisconfigurationError(f"{self._cell.name}: trainer.max_epochs={rounds}: set it to 1 or more")
        task = self._task(seed, rounds)
        moved = {self._checkpoint(name, parsed_seed): self._checkpoint(name, seed) for name in self._needs}
        config = map_texts(yaml.safe_load(parsed.config), lambda text: moved.get(text, text))
        _check_earlier_run(task, config, parsed.set_keys)
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
            *(argument for file in self._config_files(seed) for argument in ("--config", str(file))),
            *self._fit_options,
            *("--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"),
            *("--trainer.logger", "TensorBoardLogger"),
            *(argument for key, value in logger.items() for argument in (f"--trainer.logger.{key}", str(value))),
        )

    def _task(self, seed: int, rounds: int) -> Task:
        needs = tuple(_run_folder(folder, seed) for folder in self._needs.values())
        return Task(self._cell, seed, self._run_folder(seed), self.arguments(seed), rounds, self._origin, needs)

    def _run_folder(self, seed: int) -> RunFolder:
        return _run_folder(self._folder, seed)

    def _checkpoint(self, name: str, seed: int) -> str:
        """Return the checkpoint of a cell that this one needs."""
        return str(_run_folder(self._needs[name], seed).checkpoint.resolve())

    def _config_files(self, seed: int) -> list[Path]:
        """Return the files of all parts. Parts that are written out in the suite are first written to files."""
        files = []
        for number, part in enumerate(self._cell.parts, start=1):
            if isinstance(part, dict):
                suffix = f"_seed_{seed}" if needed_cells(part) else ""
                file = self._folder / f"part_{number}{suffix}.yaml"
                file.parent.mkdir(parents=True, exist_ok=True)
                content = resolve(part, lambda name: self._checkpoint(name, seed))
                file.write_text(yaml.safe_dump(content, sort_keys=False))
                part = file.resolve()
            files.append(part)
        return files


def _check_earlier_run(task: Task, config: dict[str, Any], set_keys: Collection[str]) -> None:
    """Reject a folder with a run that has other settings, because its rounds belong to another experiment."""
    if not task.folder.config.is_file():
        return
    if not task.folder.record.is_file():
        raise MisconfigurationError(f"{task.folder} has a run that compare did not start: choose another --output")
    if not task.finished and not task.folder.checkpoint.is_file():
        return  # the run starts again from its first round
    for needed in task.needs:
        if not read_record(needed).get("finished"):
            raise MisconfigurationError(
                f"{task.folder} used the checkpoint of {needed}, which is no longer finished: remove {task.folder}"
            )
    old, new = (flat_settings(each) for each in (yaml.safe_load(task.folder.config.read_text()), config))
    for difference in differences(old, new, set_keys):
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


def _run_folder(folder: Path, seed: int) -> RunFolder:
    return RunFolder(folder / f"seed_{seed}")


def _folder(cell: Cell, output: Path) -> Path:
    """Return the folder of a cell: its row and column, without characters that are awkward in paths."""
    names = [name for name in (cell.row, cell.column) if name]
    return Path(output, *(re.sub(r"[^\w.+=-]+", "_", name).strip("_.") or "_" for name in names))
