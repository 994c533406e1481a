"""The results of a comparison: final and best metrics, rounds to targets, time and bytes, over the seeds of a cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.experiments.cells import Position, Published, PublishedValue, Spread
from fl_lightning.experiments.runs import Run, Series


@dataclass(frozen=True)
class Score:
    """A metric after the last round and at its best.

    Args:
        final: the value after the last round.
        best: the best value of all rounds.
        minus_published: the final mean minus the value that the paper reports; None if that is not a number.
        minus_baseline: the final mean minus the baseline's in the same column; None without a baseline.
    """

    final: Spread
    best: Spread
    minus_published: float | None = None
    minus_baseline: float | None = None


@dataclass(frozen=True)
class Reach:
    """Rounds to a target.

    Args:
        rounds: the median over seeds; infinite if not reached.
        reached: how many seeds reached the target.
        minus_published: the rounds minus the rounds that the paper reports; None if either is not a number.
        reduction: the fraction of the baseline's rounds that is saved; None if either misses the target.
    """

    rounds: float
    reached: int
    minus_published: float | None = None
    reduction: float | None = None


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
        metrics: the metrics to report, whether or not the cell has scores.
        published: what a paper reports for the cell.
        skip: why the cell cannot run; None if it can.
        x: the value of the parameter that varies between the columns.
        baseline: the row that this one is compared with; None if there is none, or if this row is the baseline.
    """

    row: str
    column: str
    seeds: int
    finished: int
    scores: dict[str, Score]
    targets: dict[float, Reach]
    seconds: float | None
    bytes: float | None
    metrics: tuple[str, ...]
    published: Published = field(default_factory=Published)
    skip: str | None = None
    x: Position | None = None
    baseline: str | None = None

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
    skip: str | None = None,
    x: Position | None = None,
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
        skip: why the cell cannot run; None if it can.
        x: the value of the parameter that varies between the columns.
    """
    published = published or Published()
    done = [run for run in runs if run.finished]
    scores: dict[str, Score] = {}
    for metric in metrics:
        series = [run.scalars[metric] for run in done if metric in run.scalars]
        if series:
            final = Spread.of([float(one.values[-1]) for one in series])
            best = Spread.of([best_of(one, metric) for one in series])
            scores[metric] = Score(final, best, _minus(final.mean, published.metrics.get(metric)))
    series = [run.scalars[metrics[0]] for run in done if metrics[0] in run.scalars]
    reaches: dict[float, Reach] = {}
    for target in targets if series else ():
        rounds = sorted(rounds_to(one, target, metrics[0]) for one in series)
        median = (rounds[(len(rounds) - 1) // 2] + rounds[len(rounds) // 2]) / 2
        reached = sum(map(math.isfinite, rounds))
        reaches[target] = Reach(median, reached, _minus(median, published.rounds.get(target)))
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
        metrics=tuple(metrics),
        published=published,
        skip=skip,
        x=x,
    )


def _minus(ours: float, published: PublishedValue | None) -> float | None:
    return ours - published.mean if isinstance(published, Spread) and math.isfinite(ours) else None


def compare_with_baseline(results: Sequence[CellResult], baseline: str, final_values: bool = True) -> list[CellResult]:
    """Add the differences from the baseline's cell in the same column, or from its only cell if it is fixed.

    Args:
        results: all cells of a suite.
        baseline: the row of the baseline.
        final_values: whether to compare final values; those of runs that end at a target say nothing.
    """
    cells = {result.column: result for result in results if result.row == baseline}
    return [
        result if result.row == baseline else _compared(result, cells.get(result.column) or cells.get(""), final_values)
        for result in results
    ]


def _compared(result: CellResult, baseline: CellResult | None, final_values: bool) -> CellResult:
    if baseline is None:  # a fixed row has no column, and the baseline has several
        return result
    scores = {
        metric: replace(score, minus_baseline=score.final.mean - baseline.scores[metric].final.mean)
        if final_values and metric in baseline.scores
        else score
        for metric, score in result.scores.items()
    }
    targets = {
        target: replace(reach, reduction=1 - reach.rounds / baseline.targets[target].rounds)
        if target in baseline.targets and math.isfinite(reach.rounds) and math.isfinite(baseline.targets[target].rounds)
        else reach
        for target, reach in result.targets.items()
    }
    return replace(result, scores=scores, targets=targets, baseline=baseline.row)
