"""The table of a comparison: final and best metrics, rounds to targets, time, bytes; over the seeds of each cell."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fl_lightning.reporting.runs import Run, Series
from fl_lightning.reporting.suite import Printed, Published


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (that of a sample: n - 1) over seeds; one seed has no deviation."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Score:
    """A metric after the last round and at its best, with what the paper prints."""

    final: Spread
    best: Spread
    published: Printed | None


@dataclass(frozen=True)
class Reach:
    """Rounds to a target: the median over seeds, infinite if it was not reached; and how many seeds reached it."""

    rounds: float
    reached: int
    published: Printed | None


@dataclass(frozen=True)
class Line:
    """A cell of the comparison, or a curve of a report."""

    row: str
    column: str
    seeds: int
    finished: int
    scores: dict[str, Score]
    targets: dict[float, Reach]
    seconds: float | None
    bytes: float | None


def lower_is_better(metric: str) -> bool:
    """Of losses."""
    return "loss" in metric


def best_of(series: Series, metric: str) -> float:
    """The best value of a run."""
    return float(np.nanmin(series.values) if lower_is_better(metric) else np.nanmax(series.values))


def rounds_to(series: Series, target: float, metric: str) -> float:
    """The first round, counted from 1, whose evaluation after aggregation reaches the target; infinite if none does."""
    values, limit = series.values.astype(np.float32), np.float32(target)  # TensorBoard keeps 32 bits: 0.95 reaches 0.95
    reached = values <= limit if lower_is_better(metric) else values >= limit
    return float(series.rounds[np.argmax(reached)]) if reached.any() else math.inf


def summarise(
    row: str,
    column: str,
    runs: Sequence[Run],
    seeds: int,
    metrics: Sequence[str],
    targets: Sequence[float],
    published: Published | None = None,
) -> Line:
    """One line. Its numbers are of the runs that finished."""
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
    return Line(
        row=row,
        column=column,
        seeds=seeds,
        finished=len(done),
        scores=scores,
        targets=reaches,
        seconds=float(np.mean([run.seconds for run in done])) if done else None,
        bytes=float(np.mean(sent)) if done else None,
    )


def as_cells(lines: Sequence[Line]) -> list[list[str]]:
    """The table in words, its header first. Columns in which nobody has anything are left out.

    Of several metrics, the best value is told of the first one; the files have them all.
    """
    metrics = list(dict.fromkeys(metric for line in lines for metric in line.scores))
    targets = list(dict.fromkeys(target for line in lines for target in line.targets))
    shares = {metric: _is_share(metric, lines) for metric in metrics}
    columns: list[tuple[str, list[str]]] = [
        ("setting", [line.column for line in lines]),
        ("method", [line.row for line in lines]),
    ]
    for number, metric in enumerate(metrics):
        of = f" {_short(metric, metrics)}" if len(metrics) > 1 else ""
        show = _percent if shares[metric] else _plain
        scores = [line.scores.get(metric) for line in lines]
        columns += [
            (f"final{of}", [_spread(score.final, show) if score else "" for score in scores]),
            (f"best{of}", [_spread(score.best, show) if score and number == 0 else "" for score in scores]),
            (f"published{of}", [_printed(score and score.published, show) for score in scores]),
        ]
    for target in targets:
        show = _percent if shares[metrics[0]] else _plain
        columns += [
            (f"rounds to {show(target)}", [_reach(line, target, metrics[0], show) for line in lines]),
            (
                "published rounds",
                [_printed(target in line.targets and line.targets[target].published, _plain) for line in lines],
            ),
        ]
    columns += [
        ("time", ["" if line.seconds is None else duration(line.seconds) for line in lines]),
        ("sent", [_size(line.bytes) for line in lines]),
        ("seeds", [_seeds(line) for line in lines]),
    ]
    kept = [(name, texts) for name, texts in columns if any(texts)]
    return [[name for name, _ in kept], *([texts[i] for _, texts in kept] for i in range(len(lines)))]


def _short(metric: str, metrics: Sequence[str]) -> str:
    """Without its stage, if that leaves no doubt: ``accuracy`` for ``val/accuracy``."""
    name = metric.rpartition("/")[2]
    return name if sum(other.rpartition("/")[2] == name for other in metrics) == 1 else metric


def as_markdown(lines: Sequence[Line]) -> str:
    """A table whose columns are aligned also where nothing renders it."""
    cells = [[text.replace("|", "\\|") for text in row] for row in as_cells(lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    padded = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * max(width, 3) for width in widths) + " |"
    return "\n".join([padded[0], rule, *padded[1:]]) + "\n"


def as_csv(lines: Sequence[Line]) -> str:
    """Numbers only, one column each; a target that was not reached has no rounds."""
    rows: list[dict[str, Any]] = []
    for line in lines:
        row: dict[str, Any] = {
            "setting": line.column,
            "method": line.row,
            "seeds": line.seeds,
            "finished": line.finished,
        }
        for metric, score in line.scores.items():
            for when, spread in (("final", score.final), ("best", score.best)):
                row[f"{metric} {when} mean"], row[f"{metric} {when} std"] = spread.mean, spread.std
            row[f"{metric} published"] = score.published
        for target, reach in line.targets.items():
            row[f"rounds to {target:g}"] = _finite(reach.rounds)
            row[f"reached {target:g}"] = reach.reached
            row[f"rounds to {target:g} published"] = reach.published
        rows.append(row | {"seconds": line.seconds, "bytes": line.bytes})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(title: str, lines: Sequence[Line]) -> str:
    """The same numbers with their structure; a target that was not reached has ``rounds: null``."""
    cells = [asdict(line) for line in lines]
    for cell in cells:
        cell["targets"] = [{"target": target, **reach} for target, reach in cell["targets"].items()]
    return json.dumps(_finite({"title": title, "cells": cells}), indent=2, allow_nan=False) + "\n"


def _finite(tree: Any) -> Any:
    """JSON knows neither infinity nor NaN, which a diverged run has: both become null."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _is_share(metric: str, lines: Sequence[Line]) -> bool:
    """Whether it is shown in per cent: accuracies, F1 and the like lie between 0 and 1."""
    means = [
        score.mean
        for line in lines
        if metric in line.scores
        for score in (line.scores[metric].final, line.scores[metric].best)
    ]
    return not lower_is_better(metric) and all(0 <= mean <= 1 for mean in means)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}".removesuffix(".00") + " %"


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _spread(spread: Spread, show: Any) -> str:
    if show is _percent:
        return f"{100 * spread.mean:.2f}" + (f" ± {100 * spread.std:.2f}" if spread.std is not None else "") + " %"
    return _plain(spread.mean) + (f" ± {spread.std:.2g}" if spread.std is not None else "")


def _printed(value: Any, show: Any) -> str:
    if value is None or value is False:
        return ""
    return value if isinstance(value, str) else show(value)


def _reach(line: Line, target: float, metric: str, show: Any) -> str:
    if target not in line.targets:
        return ""
    reach = line.targets[target]
    rounds = f"{reach.rounds:g}" if math.isfinite(reach.rounds) else f"N/A ({show(line.scores[metric].best.mean)})"
    return rounds if line.finished == 1 else f"{rounds}, {reach.reached} of {line.finished}"


def duration(seconds: float) -> str:
    """As one says it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _size(number: float | None) -> str:
    if number is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _seeds(line: Line) -> str:
    return str(line.seeds) if line.finished == line.seeds else f"{line.finished} of {line.seeds}"
