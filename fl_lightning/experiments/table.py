"""The table of a comparison, as Markdown, CSV and JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fl_lightning.core.metric_names import is_share
from fl_lightning.experiments.cells import PublishedValue, Spread
from fl_lightning.experiments.results import CellResult


def as_cells(results: Sequence[CellResult]) -> list[list[str]]:
    """Return the table as strings, header first. Columns that are empty in every row are left out.

    Only the first of several metrics has a column for its best value; CSV and JSON have them all. A cell that cannot
    run shows the reason in the place of its first number.
    """
    metrics = results[0].metrics
    targets = dict.fromkeys(target for each in results for target in (*each.targets, *each.published.rounds))
    parameter = next((result.x.label for result in results if result.x), "setting")
    columns = [(parameter, [result.column for result in results]), ("method", [result.row for result in results])]
    for metric in metrics:
        columns += _metric_columns(results, metric, f" {_short_name(metric, metrics)}" if len(metrics) > 1 else "")
    for target in targets:
        columns += _target_columns(results, target, several=len(targets) > 1)
    columns += [
        ("time", ["" if result.seconds is None else format_duration(result.seconds) for result in results]),
        ("sent", ["" if result.bytes is None else _format_bytes(result.bytes) for result in results]),
        ("seeds", [_format_seeds(result) for result in results]),
    ]
    kept = [(name, texts) for name, texts in columns if any(texts)]
    return [[name for name, _ in kept], *([texts[i] for _, texts in kept] for i in range(len(results)))]


#: a heading, and one text per cell
_Column = tuple[str, list[str]]


def _metric_columns(results: Sequence[CellResult], metric: str, suffix: str) -> list[_Column]:
    style = _style_of(metric)
    source, versus = _common_source(results), _versus(results)
    first = metric == results[0].metrics[0]
    finals, bests, minus_baseline, published, minus_published = [], [], [], [], []
    for result in results:
        score = result.scores.get(metric)
        finals.append(_format_spread(score.final, style) if score else (result.skip or "") if first else "")
        bests.append(_format_spread(score.best, style) if score and first else "")
        minus_baseline.append(_format_difference(score.minus_baseline, style) if score else "")
        published.append(_format_published(result, result.published.metrics.get(metric), style, source))
        minus_published.append(_format_difference(score.minus_published, style) if score else "")
    return [
        (f"final{suffix}", finals),
        (f"best{suffix}", bests),
        (f"final{suffix}{versus}", minus_baseline),
        (f"published{suffix}{source}", published),
        (f"final{suffix} vs published", minus_published),
    ]


def _target_columns(results: Sequence[CellResult], target: float, several: bool) -> list[_Column]:
    style = _style_of(results[0].metrics[0])
    source, versus = _common_source(results), _versus(results)
    suffix = f" to {style(target)}" if several else ""
    ours, reductions, published, minus_published = [], [], [], []
    for result in results:
        reach = result.targets.get(target)
        ours.append(_format_reach(result, target, style))
        reductions.append("" if not reach or reach.reduction is None else f"{100 * (0 - reach.reduction):+.1f} %")
        published.append(_format_published(result, result.published.rounds.get(target), _format_number, source))
        minus_published.append(_format_difference(reach.minus_published, _format_number) if reach else "")
    return [
        (f"rounds to {style(target)}", ours),
        (f"rounds{suffix}{versus}", reductions),
        (f"published rounds{suffix}{source}", published),
        (f"rounds{suffix} vs published", minus_published),
    ]


def _common_source(results: Sequence[CellResult]) -> str:
    """Return where the paper has all published values; empty if they are in several places."""
    sources = {result.published.source for result in results if result.published.source}
    return f" ({sources.pop()})" if len(sources) == 1 else ""


def _versus(results: Sequence[CellResult]) -> str:
    return next((f" vs {result.baseline}" for result in results if result.baseline), "")


def as_markdown(results: Sequence[CellResult]) -> str:
    """Return a Markdown table whose columns are also aligned as plain text."""
    cells = [[text.replace("|", "\\|") for text in row] for row in as_cells(results)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    padded = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * max(width, 3) for width in widths) + " |"
    return "\n".join([padded[0], rule, *padded[1:]]) + "\n"


def as_csv(results: Sequence[CellResult]) -> str:
    """Return the plain numbers, one per column. The rounds to a target that was not reached are empty."""
    rows: list[dict[str, Any]] = []
    for result in results:
        row: dict[str, Any] = {
            "setting": result.column,
            "method": result.row,
            "seeds": result.seeds,
            "finished": result.finished,
            "skipped": result.skip,
        }
        for metric, score in result.scores.items():
            for when, spread in (("final", score.final), ("best", score.best)):
                row[f"{metric} {when} mean"], row[f"{metric} {when} std"] = spread.mean, spread.std
            row[f"{metric} minus published"] = score.minus_published
            row[f"{metric} minus baseline"] = score.minus_baseline
        for target, reach in result.targets.items():
            row[f"rounds to {target:g}"] = _finite(reach.rounds)
            row[f"reached {target:g}"] = reach.reached
            row[f"rounds to {target:g} minus published"] = reach.minus_published
            row[f"rounds to {target:g} reduction"] = reach.reduction
        rounds = {f"rounds to {target:g}": value for target, value in result.published.rounds.items()}
        for name, value in {**result.published.metrics, **rounds}.items():
            row[f"{name} published"] = value.mean if isinstance(value, Spread) else value
            row[f"{name} published std"] = value.std if isinstance(value, Spread) else None
        rows.append(row | {"source": result.published.source, "seconds": result.seconds, "bytes": result.bytes})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(title: str, results: Sequence[CellResult]) -> str:
    """Return the same numbers as nested JSON. The rounds to a target that was not reached are null."""
    cells = [asdict(result) for result in results]
    for cell in cells:
        cell["targets"] = [{"target": target, **reach} for target, reach in cell["targets"].items()]
        rounds = cell["published"]["rounds"]
        cell["published"]["rounds"] = [{"target": target, "rounds": value} for target, value in rounds.items()]
    return json.dumps(_finite({"title": title, "cells": cells}), indent=2, allow_nan=False) + "\n"


def format_duration(seconds: float) -> str:
    """Format seconds as 42 s, 7 min or 1 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _finite(tree: Any) -> Any:
    """Replace infinity and NaN, which occur in diverged runs but not in JSON, with None."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _short_name(metric: str, metrics: Sequence[str]) -> str:
    """Return ``accuracy`` for ``val/accuracy`` if no other metric ends in the same name."""
    name = metric.rpartition("/")[2]
    return name if sum(other.rpartition("/")[2] == name for other in metrics) == 1 else metric


def _format_percent(value: float) -> str:
    return f"{100 * value:.2f}".removesuffix(".00") + " %"


def _format_number(value: float) -> str:
    return f"{value:.4g}"


_Style = Callable[[float], str]


def _style_of(metric: str) -> _Style:
    return _format_percent if is_share(metric) else _format_number


def _format_spread(spread: Spread, style: _Style) -> str:
    if style is _format_percent:
        return f"{100 * spread.mean:.2f}" + (f" ± {100 * spread.std:.2f}" if spread.std is not None else "") + " %"
    return _format_number(spread.mean) + (f" ± {spread.std:.2g}" if spread.std is not None else "")


def _format_published(result: CellResult, value: PublishedValue | None, style: _Style, source: str) -> str:
    """Return a published value, with its source unless the heading already names it."""
    if value is None:
        return ""
    if isinstance(value, Spread):
        value = _format_spread(value, style)
    return value if source or not result.published.source else f"{value} ({result.published.source})"


def _format_difference(value: float | None, style: _Style) -> str:
    """Return a difference with its sign: in percentage points for shares, otherwise in the unit of the metric."""
    if value is None:
        return ""
    return f"{100 * value:+.2f} pp" if style is _format_percent else f"{value:+.4g}"


def _format_reach(result: CellResult, target: float, style: _Style) -> str:
    """Return the rounds to a target as papers report them: ``12``, ``N/A (90 %)``, or ``12, 2 of 3`` seeds."""
    if target not in result.targets:
        return ""
    reach = result.targets[target]
    best = result.scores[result.metrics[0]].best.mean
    rounds = f"{reach.rounds:g}" if math.isfinite(reach.rounds) else f"N/A ({style(best)})"
    return rounds if result.finished == 1 else f"{rounds}, {reach.reached} of {result.finished}"


def _format_bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _format_seeds(result: CellResult) -> str:
    if result.skip:
        return ""
    return str(result.seeds) if result.finished == result.seeds else f"{result.finished} of {result.seeds}"
