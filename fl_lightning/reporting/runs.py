"""Runs on disk: what a folder that ``fl-lightning fit`` wrote says of its run."""

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
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from tensorboard.backend.event_processing.event_accumulator import IMAGES, SCALARS, EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

CONFIG = "config.yaml"
#: what ``fl-lightning compare`` says of a run of its own: row, column, seed, and whether the run has ended
RECORD = "compare.json"
EVENTS = "events.out.tfevents.*"
#: the server logs it every round, whatever is trained
ROUNDS = "round/clients"
#: where a run differs from its repetition with another seed
_OF_ONE_RUN = ("seed_everything", "data.seed", "trainer.default_root_dir", "ckpt_path", "weights_only")


@dataclass(frozen=True)
class Series:
    """A logged number; rounds are counted from 1."""

    rounds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Run:
    """A run, finished or not. Without a config it was started from Python."""

    folder: Path
    config: dict[str, Any]
    scalars: dict[str, Series]
    seconds: float
    picture: bytes | None = None
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How many ended."""
        return int(max((series.rounds[-1] for series in self.scalars.values()), default=0))

    @property
    def max_rounds(self) -> int | None:
        """How many it was to have, if that is known."""
        limit = (self.config.get("trainer") or {}).get("max_epochs")
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def finished(self) -> bool:
        """Whether it ended by itself. Of a run that no comparison started only its rounds can tell."""
        if "finished" in self.record:
            return bool(self.record["finished"])
        return self.max_rounds is None or self.rounds >= self.max_rounds

    @property
    def seed(self) -> int | None:
        """Of ``seed_everything``."""
        return self.config.get("seed_everything")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its configuration as flat keys, without the seed and the folder: equal for repetitions of one experiment."""
        return settings_of(self.config)

    def last(self, tag: str) -> float | None:
        """The last value of a tag."""
        return float(self.scalars[tag].values[-1]) if tag in self.scalars else None


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as ``{"client.epochs": 5, ...}``, without what differs between repetitions."""
    flat = dict(_leaves(config))
    return {
        key: value for key, value in flat.items() if key not in _OF_ONE_RUN and not re.match(r"trainer\.logger\b", key)
    }


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def find_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All runs in the folders, and a line about each that cannot be shown. A folder without any run is refused."""
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            problem = "is a file: give the folder it is in" if folder.is_file() else "there is no such folder"
            raise MisconfigurationException(f"{folder}: {problem}")
        candidates = _candidates(folder)
        if not candidates:
            empty = f"{folder} is empty" if not any(folder.iterdir()) else f"{folder} holds no run"
            raise MisconfigurationException(f"{empty}: give a folder that fl-lightning fit or compare wrote")
        for candidate in candidates:
            try:
                runs[candidate.resolve()] = read_run(candidate)
            except MisconfigurationException as error:
                notes.append(str(error))
    if not runs:
        raise MisconfigurationException(notes[0])
    return list(runs.values()), notes


def _candidates(folder: Path) -> list[Path]:
    files = [*folder.rglob(EVENTS), *folder.rglob(CONFIG)]
    return sorted({file.parent for file in files}, key=_natural)


def _natural(path: Path) -> list[Any]:
    """seed_2 comes before seed_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]


def read_run(folder: Path) -> Run:
    """Reads config, logged numbers, the partition's picture. Refuses what is no run, or one without a single round."""
    config = _config(folder)
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0, IMAGES: 1}).Reload()
    tags = events.Tags()
    if ROUNDS not in tags["scalars"]:
        if config is None or tags["scalars"]:
            raise MisconfigurationException(
                f"{folder} is no run of a federation: it has no {ROUNDS} among its events; leave it out"
            )
        raise MisconfigurationException(
            f"{folder} has no round: its run ended, or was cut off, within the first; start it again, or leave it out"
        )
    scalars, walls = {}, []
    for tag in tags["scalars"]:
        points = events.Scalars(tag)
        walls += [point.wall_time for point in points]
        scalars[tag] = Series(
            np.array([point.step + 1 for point in points]), np.array([point.value for point in points], dtype=float)
        )
    picture = events.Images("partition")[-1].encoded_image_string if "partition" in tags["images"] else None
    record = _record(folder)
    return Run(folder, config or {}, scalars, _seconds(folder, walls), picture, record)


def _config(folder: Path) -> dict[str, Any] | None:
    file = folder / CONFIG
    if not file.is_file():
        return None
    try:
        config = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or not {"trainer", "data", "server"} <= config.keys():
        raise MisconfigurationException(f"{file} is no config of fl-lightning fit: leave that folder out")
    return config


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _seconds(folder: Path, walls: list[float]) -> float:
    """How long the run took, without the pauses: every start has an events file of its own.

    Rounds that were cut off and run again count once, for their points are gone.
    """
    firsts = [next(iter(EventFileLoader(str(file)).Load()), None) for file in folder.glob(EVENTS)]
    starts = sorted(first.wall_time for first in firsts if first is not None)
    walls = sorted(walls)
    seconds = 0.0
    for start, following in zip(starts, [*starts[1:], np.inf], strict=True):
        last = bisect_left(walls, following) - 1
        seconds += max(walls[last] - start, 0.0) if last >= 0 else 0.0
    return seconds
