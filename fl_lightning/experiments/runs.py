"""Reading the runs that ``fl-lightning fit`` wrote to disk."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tensorboard.backend.event_processing.event_accumulator import IMAGES, SCALARS, EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata as hparams

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.settings import flat_settings

#: the tag that the server logs in every round of every federation
ROUND_TAG = "round/clients"
#: the clients' training loss, which the HParams tab lists after the validation metrics
TRAINING_LOSS = "train/loss"


@dataclass(frozen=True)
class Series:
    """A logged number over the rounds, which are counted from 1."""

    rounds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Run:
    """A run, finished or not.

    Args:
        folder: the folder of the run.
        config: its configuration; empty if the run was started from Python.
        scalars: everything that it logged, by tag.
        seconds: how long it took, without pauses.
        evaluated: the tags that the module logged in validation.
        picture: the partition as a PNG, if it was drawn.
        record: what ``fl-lightning compare`` recorded about the run; empty for other runs.
    """

    folder: Path
    config: dict[str, Any]
    scalars: dict[str, Series]
    seconds: float
    evaluated: tuple[str, ...] = ()
    picture: bytes | None = None
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """The number of rounds that the run completed."""
        return int(max((series.rounds[-1] for series in self.scalars.values()), default=0))

    @property
    def max_rounds(self) -> int | None:
        """The number of rounds that the run should have; None if unknown."""
        limit = (self.config.get("trainer") or {}).get("max_epochs")
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def finished(self) -> bool:
        """Whether the run ended on its own. If ``compare`` left no record, this depends on the number of rounds."""
        if "finished" in self.record:
            return bool(self.record["finished"])
        return self.max_rounds is None or self.rounds >= self.max_rounds

    @property
    def seed(self) -> int | None:
        """The value of ``seed_everything``."""
        return self.config.get("seed_everything")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The :func:`flat_settings` of the configuration, which are equal for repetitions of one experiment."""
        return flat_settings(self.config)

    def last(self, tag: str) -> float | None:
        """Return the last value of a tag; None if it was not logged."""
        return float(self.scalars[tag].values[-1]) if tag in self.scalars else None


def evaluated_tags(runs: Iterable[Run]) -> list[str]:
    """Return the tags that the modules of the runs logged in validation, each once."""
    return list(dict.fromkeys(tag for run in runs for tag in run.evaluated))


def find_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return all runs in the folders, and one note about each folder that cannot be read as a run.

    Raises:
        MisconfigurationError: if one of the folders holds no run at all.
    """
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            problem = "is a file: give the folder that it is in" if folder.is_file() else "there is no such folder"
            raise MisconfigurationError(f"{folder}: {problem}")
        candidates = sorted((candidate.path for candidate in RunFolder.below(folder)), key=_natural_order)
        if not candidates:
            problem = "holds no run" if any(folder.iterdir()) else "is empty"
            raise MisconfigurationError(f"{folder} {problem}: give a folder that fl-lightning fit or compare wrote")
        for candidate in candidates:
            try:
                runs[candidate.resolve()] = read_run(candidate)
            except MisconfigurationError as error:
                notes.append(str(error))
    if not runs:
        raise MisconfigurationError(notes[0])
    return list(runs.values()), notes


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts seed_2 before seed_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]


def read_run(folder: Path) -> Run:
    """Read the configuration, the logged numbers and the picture of the partition.

    Raises:
        MisconfigurationError: if the folder holds no run, or one without a completed round.
    """
    files = RunFolder(folder)
    config = _read_config(files)
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0, IMAGES: 1}).Reload()
    tags = events.Tags()
    if ROUND_TAG not in tags["scalars"]:
        if config is None or tags["scalars"]:
            raise MisconfigurationError(
                f"{folder} is not a run of a federation, because its events have no {ROUND_TAG}: leave it out"
            )
        raise MisconfigurationError(
            f"{folder} has no completed round, because its run ended during the first: start it again, or leave it out"
        )
    scalars, times = {}, []
    for tag in tags["scalars"]:
        points = events.Scalars(tag)
        times += [point.wall_time for point in points]
        scalars[tag] = Series(
            np.array([point.step + 1 for point in points]), np.array([point.value for point in points], dtype=float)
        )
    return Run(
        folder=folder,
        config=config or {},
        scalars=scalars,
        seconds=_duration(files, times),
        evaluated=tuple(tag for tag in _validation_tags(events, scalars) if tag in scalars),
        picture=events.Images("partition")[-1].encoded_image_string if "partition" in tags["images"] else None,
        record=read_record(files),
    )


def read_record(folder: RunFolder) -> dict[str, Any]:
    """Return what ``fl-lightning compare`` recorded about a run; empty if the record is missing or damaged."""
    try:
        record = json.loads(folder.record.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _read_config(folder: RunFolder) -> dict[str, Any] | None:
    if not folder.config.is_file():
        return None
    try:
        config = yaml.safe_load(folder.config.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or not {"trainer", "data", "server"} <= config.keys():
        raise MisconfigurationError(f"{folder.config} is not a config of fl-lightning fit: leave that folder out")
    return config


def _validation_tags(events: EventAccumulator, scalars: Iterable[str]) -> list[str]:
    """Return what the module logged in validation: the metrics that the run lists for TensorBoard's HParams tab.

    If the run has no such list, return the tags that start with ``val`` or ``test``.
    """
    try:
        content = events.PluginTagToContent(hparams.PLUGIN_NAME)[hparams.EXPERIMENT_TAG]
    except KeyError:
        listed = []
    else:
        listed = [info.name.tag for info in hparams.parse_experiment_plugin_data(content).metric_infos]
    # Lightning's logger lists a placeholder, hp_metric, if nothing else is listed.
    listed = [tag for tag in listed if tag not in (TRAINING_LOSS, "hp_metric")]
    return listed or [tag for tag in scalars if tag.startswith(("val", "test"))]


def _duration(folder: RunFolder, times: list[float]) -> float:
    """Return the seconds that a run took, without pauses. Each start of the run has its own event file.

    A round that was interrupted and run again counts once, because its first points were dropped.

    Args:
        folder: the folder of the run.
        times: time at which each logged point was written.
    """
    first_events = [next(iter(EventFileLoader(str(file)).Load()), None) for file in folder.events]
    starts = sorted(event.wall_time for event in first_events if event is not None)
    times = sorted(times)
    seconds = 0.0
    for start, following in zip(starts, [*starts[1:], np.inf], strict=True):
        last = bisect_left(times, following) - 1
        seconds += max(times[last] - start, 0.0) if last >= 0 else 0.0
    return seconds
