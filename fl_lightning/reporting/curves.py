"""Runs that differ only in their seed are one curve."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.reporting.runs import Run

_REPETITION = re.compile(r"(seed|version)_\d+")


@dataclass(frozen=True)
class Curve:
    """An experiment: its runs, one a seed. Curves of one setting are drawn into one figure."""

    name: str
    setting: str
    runs: tuple[Run, ...]

    @property
    def full_name(self) -> str:
        """With its setting."""
        return f"{self.name}, {self.setting}" if self.setting else self.name


@dataclass(frozen=True)
class Band:
    """A logged number over the rounds: the mean over seeds, and the standard deviation if there are several."""

    rounds: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None


def band(curve: Curve, tag: str, minus: Curve | None = None) -> Band | None:
    """Mean and deviation over the seeds that have the round; None where nobody logged it.

    Args:
        curve: whose.
        tag: of what.
        minus: a baseline. The difference is taken seed by seed where both have the same seeds, else of the means.
    """
    table = _table(curve.runs, tag)
    if table is None:
        return None
    rounds, values = table
    if minus is not None:
        other = _table(minus.runs, tag)
        if other is None:
            return None
        rounds, mine, theirs = np.intersect1d(rounds, other[0], return_indices=True)
        if not len(rounds):
            return None
        values, baseline = values[:, mine], other[1][:, theirs]
        paired = _seeds(curve, tag) == _seeds(minus, tag)
        values = values - baseline if paired else _mean(values) - _mean(baseline)
    several = (~np.isnan(values)).sum(0) > 1
    std = np.full(len(rounds), np.nan)
    std[several] = np.nanstd(values[:, several], axis=0, ddof=1)
    return Band(rounds, _mean(values)[0], std if several.any() else None)


def _seeds(curve: Curve, tag: str) -> list[int | None]:
    return [run.seed for run in curve.runs if tag in run.scalars]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the seeds that have a value; NaN where none has."""
    known = ~np.isnan(values)
    sums, counts = np.where(known, values, 0.0).sum(0, keepdims=True), known.sum(0, keepdims=True)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _table(runs: Sequence[Run], tag: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Rounds, and values as seeds × rounds, NaN where a seed does not have the round."""
    series = [run.scalars[tag] for run in runs if tag in run.scalars]
    if not series:
        return None
    rounds = np.unique(np.concatenate([one.rounds for one in series]))
    values = np.full((len(series), len(rounds)), np.nan)
    for row, one in zip(values, series, strict=True):
        row[np.searchsorted(rounds, one.rounds)] = one.values
    return rounds, values


def group(runs: Sequence[Run]) -> list[Curve]:
    """One curve for each configuration, setting by setting, FedAvg first. A comparison's runs know their names."""
    names = _names([run.folder for run in runs])
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        # without a configuration nobody knows whether two runs repeat each other
        key: Any = [run.settings or str(run.folder), run.record.get("row"), run.record.get("column")]
        groups.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(index)
    curves = []
    for members in groups.values():
        first = runs[members[0]]
        name, setting = first.record.get("row", names[members[0]]), first.record.get("column", "")
        curves.append(Curve(name, setting, tuple(runs[index] for index in members)))
    full = [curve.full_name for curve in curves]
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    curves.sort(key=lambda curve: (settings.index(curve.setting), _aggregator(curve) != "FedAvg"))
    return [
        curve if full.count(curve.full_name) == 1 else replace(curve, name=f"{curve.name}/{curve.runs[0].folder.name}")
        for curve in curves
    ]


def _names(folders: Sequence[Path]) -> list[str]:
    """What tells the folders apart, without ``version_0`` and ``seed_1``."""
    folders = [folder.resolve() for folder in folders]
    folders = [folder.parent if _REPETITION.fullmatch(folder.name) else folder for folder in folders]
    if len(set(folders)) == 1:
        return [folder.name for folder in folders]
    common = os.path.commonpath(folders)
    return [os.path.relpath(folder, common) if str(folder) != common else folder.name for folder in folders]


def baseline_of(curves: Sequence[Curve]) -> Curve:
    """FedAvg if it is among them, for it is the baseline of all papers; else the first."""
    averaging = [curve for curve in curves if _aggregator(curve) == "FedAvg"]
    return (averaging or list(curves))[0]


def _aggregator(curve: Curve) -> str | None:
    """FedAvg is also what runs if none is chosen."""
    config = curve.runs[0].config
    chosen = (config.get("server") or {}).get("aggregator")
    if not config:
        return None
    return str((chosen or {}).get("class_path", "FedAvg")).rpartition(".")[2]


def differences(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """The settings that are not the same for all curves: key to one value a curve, None where there is no such key."""
    settings = [curve.runs[0].settings for curve in curves]
    keys = dict.fromkeys(key for one in settings for key in one)
    values = {key: [one.get(key) for one in settings] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}
