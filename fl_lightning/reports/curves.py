"""Curves: runs that differ only in their seed are drawn as one."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.experiments.runs import Run

_REPETITION = re.compile(r"(seed|version)_\d+")


@dataclass(frozen=True)
class Curve:
    """An experiment with its runs, one per seed. Curves with the same setting are drawn in the same figure."""

    name: str
    setting: str
    runs: tuple[Run, ...]

    @property
    def full_name(self) -> str:
        """The name and the setting."""
        return f"{self.name}, {self.setting}" if self.setting else self.name


@dataclass(frozen=True)
class Band:
    """A logged number over the rounds: its mean over seeds, and its standard deviation if there are several seeds."""

    rounds: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None


def band(curve: Curve, tag: str, minus: Curve | None = None) -> Band | None:
    """Return the mean and the deviation of each round, over the seeds that logged it.

    Args:
        curve: the runs.
        tag: the tag to summarise. If no run has logged it, the result is None.
        minus: a baseline to subtract, seed by seed if both curves have the same seeds, otherwise mean from mean.
    """
    table = _table(curve.runs, tag)
    if table is None:
        return None
    rounds, values = table
    if minus is not None:
        baseline_table = _table(minus.runs, tag)
        if baseline_table is None:
            return None
        rounds, own, other = np.intersect1d(rounds, baseline_table[0], return_indices=True)
        if not len(rounds):
            return None
        values, baseline = values[:, own], baseline_table[1][:, other]
        paired = _seeds(curve, tag) == _seeds(minus, tag)
        values = values - baseline if paired else _mean(values) - _mean(baseline)
    several = (~np.isnan(values)).sum(0) > 1
    std = np.full(len(rounds), np.nan)
    std[several] = np.nanstd(values[:, several], axis=0, ddof=1)
    return Band(rounds, _mean(values)[0], std if several.any() else None)


def _seeds(curve: Curve, tag: str) -> list[int | None]:
    return [run.seed for run in curve.runs if tag in run.scalars]


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the seeds that have a value; NaN if none has."""
    known = ~np.isnan(values)
    sums, counts = np.where(known, values, 0.0).sum(0, keepdims=True), known.sum(0, keepdims=True)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _table(runs: Sequence[Run], tag: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rounds, and the values as seeds × rounds with NaN where a seed has not logged the round."""
    series = [run.scalars[tag] for run in runs if tag in run.scalars]
    if not series:
        return None
    rounds = np.unique(np.concatenate([one.rounds for one in series]))
    values = np.full((len(series), len(rounds)), np.nan)
    for row, one in zip(values, series, strict=True):
        row[np.searchsorted(rounds, one.rounds)] = one.values
    return rounds, values


def group_runs(runs: Sequence[Run]) -> list[Curve]:
    """Return one curve per configuration, sorted by setting, with FedAvg first in each setting.

    Runs of a comparison have the names of its suite; other runs are named after their folders.
    """
    names = _names([run.folder for run in runs])
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        # Runs without a configuration are never grouped: they may not be repetitions of each other.
        # A run of an earlier version lacks newer settings, which are None unless they are used.
        used = {name: value for name, value in run.settings.items() if value is not None}
        key: Any = [used or str(run.folder), run.record.get("row"), run.record.get("column")]
        text = json.dumps(key, sort_keys=True, default=str)
        # In a comparison, a run may use the checkpoint of a run with the same seed.
        text = text.replace(f"/seed_{run.seed}/", "/seed_/") if run.record else text
        groups.setdefault(text, []).append(index)
    curves = []
    for members in groups.values():
        first = runs[members[0]]
        name, setting = first.record.get("row", names[members[0]]), first.record.get("column", "")
        curves.append(Curve(name, setting, tuple(runs[index] for index in members)))
    full_names = [curve.full_name for curve in curves]
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    curves.sort(key=lambda curve: (settings.index(curve.setting), _aggregator(curve) != "FedAvg"))
    return [
        curve
        if full_names.count(curve.full_name) == 1
        else replace(curve, name=f"{curve.name}/{curve.runs[0].folder.name}")
        for curve in curves
    ]


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest paths that tell the folders apart, without ``version_0`` and ``seed_1``."""
    folders = [folder.resolve() for folder in folders]
    folders = [folder.parent if _REPETITION.fullmatch(folder.name) else folder for folder in folders]
    if len(set(folders)) == 1:
        return [folder.name for folder in folders]
    common = os.path.commonpath(folders)
    return [os.path.relpath(folder, common) if str(folder) != common else folder.name for folder in folders]


def baseline_of(curves: Sequence[Curve], name: str | None = None) -> Curve:
    """Return the curve with this name, or else FedAvg's, the baseline in every paper, or else the first."""
    named = [curve for curve in curves if curve.name == name]
    averaging = [curve for curve in curves if _aggregator(curve) == "FedAvg"]
    return (named or averaging or list(curves))[0]


def _aggregator(curve: Curve) -> str | None:
    """Return the name of the aggregator's class; None if the configuration is unknown. The default is FedAvg."""
    config = curve.runs[0].config
    chosen = (config.get("server") or {}).get("aggregator")
    if not config:
        return None
    return str((chosen or {}).get("class_path", "FedAvg")).rpartition(".")[2]


def differences(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """Return the settings in which the curves differ, with one value per curve; None where a curve lacks the key."""
    settings = [curve.runs[0].settings for curve in curves]
    keys = dict.fromkeys(key for one in settings for key in one)
    values = {key: [one.get(key) for one in settings] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}
