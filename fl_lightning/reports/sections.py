"""The sections of a report, with figures of everything that was logged."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fl_lightning.core.metric_names import is_share, smaller_is_better
from fl_lightning.experiments.runs import TRAINING_LOSS, evaluated_tags
from fl_lightning.reports.curves import Curve, band, baseline_of
from fl_lightning.reports.figures import DASHES, Scale, Stroke, figure

#: groups of layers in the tags of norms, in the order of their figures. Single layers come after them.
_LAYER_GROUPS = ("all", "convolution", "fully_connected", "normalisation")
_DASHED = DASHES[1]


@dataclass(frozen=True)
class Section:
    """Figures with a common legend.

    Args:
        title: the heading.
        note: how to read the figures.
        figures: the figures, as HTML.
        legend: pairs of a colour's number and the name that it stands for.
        folded: figures that are shown on demand.
    """

    title: str
    note: str
    figures: list[str]
    legend: list[tuple[int, str]]
    folded: list[str] = field(default_factory=list)


class Sections:
    """All sections of a report. A method has the same colour in all of them.

    Args:
        curves: the runs to draw.
        metrics: the metrics to draw over the rounds and to compare with the baseline.
        targets: values of the first metric.
        baseline: the name of the baseline; by default, FedAvg.
    """

    def __init__(
        self,
        curves: Sequence[Curve],
        metrics: Sequence[str],
        targets: Sequence[float],
        baseline: str | None = None,
    ) -> None:
        self._baseline = baseline
        self._curves = curves
        self._metrics = metrics
        self._targets = targets
        self._colours = {name: number for number, name in enumerate(dict.fromkeys(curve.name for curve in curves))}
        self._settings = list(dict.fromkeys(curve.setting for curve in curves))
        self._tags = dict.fromkeys(tag for curve in curves for run in curve.runs for tag in run.scalars)

    def all(self) -> list[Section]:
        """Return the sections that have a figure."""
        sections = [
            self._metric_curves(),
            self._difference(),
            self._norms(),
            self._moves(),
            *self._angles(),
            self._losses(),
            self._spread_over_clients(),
        ]
        return [section for section in sections if section.figures or section.folded]

    def _metric_curves(self) -> Section:
        several = any(len(curve.runs) > 1 for curve in self._curves)
        figures = []
        for number, metric in enumerate(self._metrics):
            for setting, members in self._by_setting():
                strokes = self._strokes(members, metric)
                levels = self._targets if number == 0 else ()
                figures += self._draw(_title(metric, setting), metric, strokes, levels=levels, percent=is_share(metric))
        notes = ["Lines are means over seeds; bands are one standard deviation."] if several else []
        notes += ["Dotted lines are the targets."] if self._targets else []
        return self._section("Metrics over the rounds", " ".join(notes), figures)

    def _difference(self) -> Section:
        figures = []
        names = set()
        for metric in self._metrics:
            for setting, members in self._by_setting():
                baseline = baseline_of(members, self._baseline)
                names.add(baseline.name)
                others = [curve for curve in members if curve is not baseline]
                strokes = self._strokes(others, metric, minus=baseline)
                title = _title(f"{metric} minus {baseline.name}", setting)
                figures += self._draw(title, "difference", strokes, levels=(0.0,), percent=is_share(metric))
        sides = [
            f"{side} zero{f' ({names_})' if len(self._metrics) > 1 else ''}"
            for side, smaller in (("Above", False), ("Below", True))
            if (names_ := ", ".join(metric for metric in self._metrics if smaller_is_better(metric) == smaller))
        ]
        better = " or ".join(side if number == 0 else side.lower() for number, side in enumerate(sides))
        note = f"{better}, a method is better than {' or '.join(sorted(names))} in that round."
        section = self._section("Difference from the baseline", note, figures)
        return replace(section, legend=[key for key in section.legend if names != {key[1]}])

    def _norms(self) -> Section:
        layers = [match.group(1) for tag in self._tags if (match := re.fullmatch(r"norms/(.+)/N", tag))]
        figures = self._norm_figures([group for group in _LAYER_GROUPS if group in layers])
        folded = self._norm_figures([layer for layer in layers if layer not in _LAYER_GROUPS])
        for setting, members in self._by_setting():
            strokes = self._strokes(members, "norms/all/N_over_E")
            figures += self._draw(_title("N / E, whole model", setting), "N / E", strokes, limits=(0.0, 1.05))
        note = "N (solid) is the norm of the average update. E (dashed) is the average norm of the clients' updates."
        return self._section("Norms of the updates", note, figures, folded)

    def _norm_figures(self, layers: Iterable[str]) -> list[str]:
        figures = []
        for layer in layers:
            for setting, members in self._by_setting():
                strokes = self._strokes(members, f"norms/{layer}/N")
                strokes += self._strokes(members, f"norms/{layer}/E", dash=_DASHED)
                figures += self._draw(_title(f"N and E, {_label(layer)}", setting), "norm", strokes, scale="log")
        return figures

    def _moves(self) -> Section:
        figures = []
        for layer in (group for group in _LAYER_GROUPS if f"norms/{group}/move" in self._tags):
            for setting, members in self._by_setting():
                strokes = self._strokes(members, f"norms/{layer}/move")
                strokes += self._strokes(members, f"norms/{layer}/E", dash=_DASHED)
                figures += self._draw(_title(f"Move and E, {_label(layer)}", setting), "norm", strokes, scale="log")
        for setting, members in self._by_setting():
            strokes = self._strokes(members, "norms/all/integral")
            figures += self._draw(_title("Sum of the moves, whole model", setting), "sum of norms", strokes)
        note = "Solid is the norm of the server's step. E (dashed) is the average norm of the clients' updates."
        return self._section("How far the global model moved", note, figures)

    def _angles(self) -> list[Section]:
        """Draw the first run of each curve, because the clients differ between seeds."""
        sections = []
        for prefix, title in (("angles", "Angles"), ("angles_smoothed", "Smoothed angles")):
            clients = sorted({tag for tag in self._tags if re.fullmatch(rf"{prefix}/client_\d+", tag)})
            summaries = [f"{prefix}/quantile_{share}" for share in (10, 50, 90)]
            firsts = [curve.runs[0].scalars for curve in self._curves]
            drawn = [scalars[tag].values for scalars in firsts for tag in (*clients, *summaries) if tag in scalars]
            limits = _limits(np.concatenate(drawn)) if drawn else None
            figures = []
            for curve in self._curves:
                run = curve.runs[0]
                strokes = [
                    Stroke(run.scalars[tag].rounds, run.scalars[tag].values, colour, thin=True)
                    for colour, tag in enumerate(clients)
                    if tag in run.scalars
                ]
                for tag, dash in zip(summaries, (_DASHED, "-", _DASHED), strict=True):
                    if tag in run.scalars:
                        strokes.append(Stroke(run.scalars[tag].rounds, run.scalars[tag].values, 0, dash=dash))
                seed = f", seed {run.seed}" if len(curve.runs) > 1 else ""
                figures += self._draw(f"{curve.full_name}{seed}", "radians", strokes, limits=limits)
            legend = [(colour, f"client {int(tag.rpartition('_')[2])}") for colour, tag in enumerate(clients)]
            note = "The angle between a client's update and the average update."
            if not clients:
                note += " The median is solid; the 10 % and 90 % quantiles are dashed."
            sections.append(Section(f"{title} of the clients", note, figures, legend))
        return sections

    def _losses(self) -> Section:
        evaluated = evaluated_tags(run for curve in self._curves for run in curve.runs)
        tags = [TRAINING_LOSS, *(tag for tag in evaluated if smaller_is_better(tag))]
        tags += sorted(tag for tag in self._tags if tag.startswith("divergence/"))
        figures = self._tag_figures(tag for tag in tags if tag not in self._metrics)
        return self._section("Loss and divergence", "", figures)

    def _spread_over_clients(self) -> Section:
        tags = sorted(tag for tag in self._tags if tag.startswith("clients/") and tag.endswith(("_mean", "_worst")))
        note = "Worst is the mean over the worst tenth of the clients."
        return self._section("Evaluation per client", note, self._tag_figures(tags))

    def _tag_figures(self, tags: Iterable[str]) -> list[str]:
        figures = []
        for tag in tags:
            for setting, members in self._by_setting():
                figures += self._draw(_title(tag, setting), tag.rpartition("/")[2], self._strokes(members, tag))
        return figures

    def _by_setting(self) -> list[tuple[str, list[Curve]]]:
        return [(setting, [curve for curve in self._curves if curve.setting == setting]) for setting in self._settings]

    def _strokes(
        self, curves: Iterable[Curve], tag: str, minus: Curve | None = None, dash: object = None
    ) -> list[Stroke]:
        bands = [(curve, band(curve, tag, minus)) for curve in curves]
        return [
            Stroke(found.rounds, found.mean, self._colours[curve.name], found.std, dash)
            for curve, found in bands
            if found is not None
        ]

    def _draw(
        self,
        title: str,
        ylabel: str,
        strokes: Sequence[Stroke],
        scale: Scale = "linear",
        levels: Sequence[float] = (),
        percent: bool = False,
        limits: tuple[float, float] | None = None,
    ) -> list[str]:
        """Return a list with one figure, or an empty list if there is no line to draw."""
        if not strokes:
            return []
        if scale == "log" and not any((stroke.y > 0).any() for stroke in strokes):
            scale = "linear"
        return [figure(title, ylabel, strokes, scale, levels, percent, limits)]

    def _section(self, title: str, note: str, figures: list[str], folded: list[str] | None = None) -> Section:
        legend = [(colour, name) for name, colour in self._colours.items()]
        return Section(title, note, figures, legend, folded or [])


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return common limits of the y axis, for figures that are compared with each other."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin


def _title(text: str, setting: str) -> str:
    return f"{text} · {setting}" if setting else text


def _label(layer: str) -> str:
    names = {"all": "whole model", "fully_connected": "fully connected layers", "convolution": "convolutions"}
    return names.get(layer, layer)
