"""The table of a comparison, as Markdown, CSV and JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.experiments.results import CellResult, Spread
from fl_lightning.experiments.suite import PublishedValue


def as_cells(results: Sequence[CellResult]) -> list[list[str]]:
    """Return the table as strings, header first. Columns that are empty in every row are left out.

    Only the first of several metrics has a column for its best value; CSV and JSON have them all.
    """
    metrics = list(dict.fromkeys(metric for result in results for metric in result.scores))
    targets = list(dict.fromkeys(target for result in results for target in result.targets))
    formats = {metric: _format_percent if _is_share(metric, results) else _format_number for metric in metrics}
    columns: list[tuple[str, list[str]]] = [
        ("setting", [result.column for result in results]),
        ("method", [result.row for result in results]),
    ]
    for number, metric in enumerate(metrics):
        suffix = f" {_short_name(metric, metrics)}" if len(metrics) > 1 else ""
        style = formats[metric]
        scores = [result.scores.get(metric) for result in results]
        columns += [
            (f"final{suffix}", [_format_spread(score.final, style) if score else "" for score in scores]),
            (
                f"best{suffix}",
                [_format_spread(score.best, style) if score and number == 0 else "" for score in scores],
            ),
            (f"published{suffix}", [_format_published(score.published, style) if score else "" for score in scores]),
        ]
    for target in targets:
        style = formats[metrics[0]]
        reaches = [result.targets.get(target) for result in results]
        columns += [
            (f"rounds to {style(target)}", [_format_reach(result, target, metrics[0], style) for result in results]),
            (
                "published rounds",
                [_format_published(reach.published, _format_number) if reach else "" for reach in reaches],
            ),
        ]
    columns += [
        ("time", ["" if result.seconds is None else format_duration(result.seconds) for result in results]),
        ("sent", ["" if result.bytes is None else _format_bytes(result.bytes) for result in results]),
        ("seeds", [_format_seeds(result) for result in results]),
    ]
    kept = [(name, texts) for name, texts in columns if any(texts)]
    return [[name for name, _ in kept], *([texts[i] for _, texts in kept] for i in range(len(results)))]


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
        }
        for metric, score in result.scores.items():
            for when, spread in (("final", score.final), ("best", score.best)):
                row[f"{metric} {when} mean"], row[f"{metric} {when} std"] = spread.mean, spread.std
            row[f"{metric} published"] = score.published
        for target, reach in result.targets.items():
            row[f"rounds to {target:g}"] = _finite(reach.rounds)
            row[f"reached {target:g}"] = reach.reached
            row[f"rounds to {target:g} published"] = reach.published
        rows.append(row | {"seconds": result.seconds, "bytes": result.bytes})
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


def _is_share(metric: str, results: Sequence[CellResult]) -> bool:
    """Return whether a metric is printed as a percentage, because it lies between 0 and 1 like an accuracy."""
    scores = [result.scores[metric] for result in results if metric in result.scores]
    means = [spread.mean for score in scores for spread in (score.final, score.best)]
    return not smaller_is_better(metric) and all(0 <= mean <= 1 for mean in means)


def _format_percent(value: float) -> str:
    return f"{100 * value:.2f}".removesuffix(".00") + " %"


def _format_number(value: float) -> str:
    return f"{value:.4g}"


_Style = Callable[[float], str]


def _format_spread(spread: Spread, style: _Style) -> str:
    if style is _format_percent:
        return f"{100 * spread.mean:.2f}" + (f" ± {100 * spread.std:.2f}" if spread.std is not None else "") + " %"
    return _format_number(spread.mean) + (f" ± {spread.std:.2g}" if spread.std is not None else "")


def _format_published(value: PublishedValue | None, style: _Style) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else style(value)


def _format_reach(result: CellResult, target: float, metric: str, style: _Style) -> str:
    """Return the rounds to a target as papers report them: ``12``, ``N/A (90 %)``, or ``12, 2 of 3`` seeds."""
    if target not in result.targets:
        return ""
    reach = result.targets[target]
    rounds = f"{reach.rounds:g}" if math.isfinite(reach.rounds) else f"N/A ({style(result.scores[metric].best.mean)})"
    return rounds if result.finished == 1 else f"{rounds}, {reach.reached} of {result.finished}"


def _format_bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _format_seeds(result: CellResult) -> str:
    return str(result.seeds) if result.finished == result.seeds else f"{result.finished} of {result.seeds}"
