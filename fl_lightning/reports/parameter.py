"""The section of a report that draws results against a parameter, with one line per method."""

from collections.abc import Sequence

import numpy as np

from fl_lightning.core.metric_names import is_share
from fl_lightning.experiments.results import CellResult
from fl_lightning.reports.figures import Stroke, figure
from fl_lightning.reports.sections import Section

#: points: the parameter's value, a result and its deviation over seeds
_Points = list[tuple[float, float, float | None]]


def parameter_section(
    results: Sequence[CellResult], metrics: Sequence[str], targets: Sequence[float]
) -> Section | None:
    """Return the figures of a comparison whose columns are values of a parameter; None if they are not.

    A method that does not have the parameter is a horizontal line.

    Args:
        results: all cells of the comparison.
        metrics: the metrics, whose final values are drawn.
        targets: values of the first metric. The rounds to each are drawn, if they were reached.
    """
    label = next((result.x.label for result in results if result.x), None)
    if label is None:
        return None
    rows = list(dict.fromkeys(result.row for result in results))
    places = [result.x.value for result in results if result.x]
    ends = min(places), max(places)

    def strokes(points: dict[str, _Points]) -> list[Stroke]:
        return [_stroke(points[row], colour, ends) for colour, row in enumerate(rows) if points[row]]

    figures = []
    for metric in metrics:
        finals: dict[str, _Points] = {row: [] for row in rows}
        for result in results:
            if metric in result.scores:
                final = result.scores[metric].final
                finals[result.row].append((result.x.value if result.x else np.nan, final.mean, final.std))
        drawn = strokes(finals)
        if drawn:
            figures.append(_figure(f"Final {metric}", metric, drawn, is_share(metric), label))
    for target in targets:
        rounds: dict[str, _Points] = {row: [] for row in rows}
        for result in results:
            if target in result.targets and np.isfinite(result.targets[target].rounds):
                rounds[result.row].append((result.x.value if result.x else np.nan, result.targets[target].rounds, None))
        drawn = strokes(rounds)
        if drawn:
            figures.append(_figure(f"Rounds to {metrics[0]} = {target:g}", "rounds", drawn, False, label))
    note = "Points are means over seeds (medians, for rounds); bands are one standard deviation."
    return Section(f"Results against {label}", note, figures, list(enumerate(rows))) if figures else None


def _stroke(points: _Points, colour: int, ends: tuple[float, float]) -> Stroke:
    """Return a line through the points in the order of the parameter, or a horizontal line without the parameter."""
    if np.isnan(points[0][0]):
        _, level, std = points[0]
        return Stroke(np.array(ends), np.full(2, level), colour, None if std is None else np.full(2, std))
    x, y, deviations = zip(*sorted(points, key=lambda point: point[0]), strict=True)
    width = np.array([deviation or 0.0 for deviation in deviations]) if any(deviations) else None
    return Stroke(np.array(x), np.array(y), colour, width, points=True)


def _figure(title: str, ylabel: str, strokes: Sequence[Stroke], percent: bool, label: str) -> str:
    return figure(f"{title} against {label}", ylabel, strokes, "linear", (), percent, None, label)
