"""The results of a comparison: final and best metrics, rounds to targets, time and bytes, over the seeds of a cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.experiments.runs import Run, Series
from fl_lightning.experiments.suite import Published, PublishedValue


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) over seeds. A single seed has no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one or more values."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Score:
    """A metric after the last round and at its best, and the value that the paper reports."""

    final: Spread
    best: Spread
    published: PublishedValue | None


@dataclass(frozen=True)
class Reach:
    """Rounds to a target: the median over seeds (infinite if not reached), and how many seeds reached the target."""

    rounds: float
    reached: int
    published: PublishedValue | None


@dataclass(frozen=True)
class CellResult:
    """The results of one cell of a suite, or of one curve of a report.

    Args:
        row: the method.
        column: the setting; empty if there is only one.
        seeds: the number of runs that the cell should have.
        finished: the number of runs that have finished. All values below are computed from these.
        scores: the scores, by metric.
        targets: the rounds to each target of the first metric.
        seconds: the mean duration of a run; None if none has finished.
        bytes: the mean number of bytes that a run sent, up and down; None if none has finished.
    """

    row: str
    column: str
    seeds: int
    finished: int
    scores: dict[str, Score]
    targets: dict[float, Reach]
    seconds: float | None
    bytes: float | None

    @property
    def name(self) -> str:
        """The method and its setting."""
        return f"{self.row}, {self.column}" if self.column else self.row


def best_of(series: Series, metric: str) -> float:
    """Return the best value of a metric in a run."""
    return float(np.nanmin(series.values) if smaller_is_better(metric) else np.nanmax(series.values))


def rounds_to(series: Series, target: float, metric: str) -> float:
    """Return the first round, counted from 1, in which the metric reaches the target; infinity if none does."""
    values, limit = series.values.astype(np.float32), np.float32(target)  # TensorBoard keeps 32 bits: 0.95 reaches 0.95
    reached = values <= limit if smaller_is_better(metric) else values >= limit
    return float(series.rounds[np.argmax(reached)]) if reached.any() else math.inf


def summarise(
    row: str,
    column: str,
    runs: Sequence[Run],
    seeds: int,
    metrics: Sequence[str],
    targets: Sequence[float],
    published: Published | None = None,
) -> CellResult:
    """Summarise the finished runs of a cell.

    Args:
        row: the method.
        column: the setting; empty if there is only one.
        runs: the runs of the cell, finished or not.
        seeds: the number of runs that the cell should have.
        metrics: the metrics to summarise.
        targets: values of the first metric.
        published: what a paper reports for the cell.
    """
    published = published or Published()
    done = [run for run in runs if run.finished]
    scores: dict[str, Score] = {}
    for metric in metrics:
        series = [run.scalars[metric] for run in done if metric in run.scalars]
        if series:
            final = Spread.of([float(one.values[-1]) for one in series])
            best = Spread.of([best_of(one, metric) for one in series])
            scores[metric] = Score(final, best, published.metrics.get(metric))
    series = [run.scalars[metrics[0]] for run in done if metrics[0] in run.scalars]
    reaches: dict[float, Reach] = {}
    for target in targets if series else ():
        rounds = sorted(rounds_to(one, target, metrics[0]) for one in series)
        middle = rounds[(len(rounds) - 1) // 2], rounds[len(rounds) // 2]
        reaches[target] = Reach(sum(middle) / 2, sum(map(math.isfinite, rounds)), published.rounds.get(target))
    sent = [sum(run.last(f"bytes/{way}_total") or 0.0 for way in ("up", "down")) for run in done]
    return CellResult(
        row=row,
        column=column,
        seeds=seeds,
        finished=len(done),
        scores=scores,
        targets=reaches,
        seconds=float(np.mean([run.seconds for run in done])) if done else None,
        bytes=float(np.mean(sent)) if done else None,
    )
