"""The sections of a report: which figures there are, from what was logged. What was not logged is left out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fl_lightning.reporting.curves import Curve, band, baseline_of
from fl_lightning.reporting.figures import DASHES, Scale, Stroke, figure
from fl_lightning.reporting.table import lower_is_better

#: in this order, before the single layers
KINDS = ("all", "convolution", "fully_connected", "normalisation")
_DASHED = DASHES[1]
_DOTTED = DASHES[2]


@dataclass(frozen=True)
class Section:
    """Figures with a common legend; ``folded`` ones are there on demand."""

    title: str
    note: str
    figures: list[str]
    #: (number of the colour, what it stands for)
    legend: list[tuple[int, str]]
    folded: list[str] = field(default_factory=list)


class Sections:
    """All sections of a report. A method has the same colour in all of them."""

    def __init__(self, curves: Sequence[Curve], metrics: Sequence[str], targets: Sequence[float]) -> None:
        self.curves = curves
        self.metrics = metrics
        self.targets = targets
        self.colours = {name: number for number, name in enumerate(dict.fromkeys(curve.name for curve in curves))}
        self.settings = list(dict.fromkeys(curve.setting for curve in curves))
        self.tags = dict.fromkeys(tag for curve in curves for run in curve.runs for tag in run.scalars)

    def all(self) -> list[Section]:
        """Those that have a figure."""
        sections = [
            self._metrics(),
            self._difference(),
            self._norms(),
            self._moves(),
            *self._angles(),
            self._losses(),
            self._spread_over_clients(),
        ]
        return [section for section in sections if section.figures or section.folded]

    def _metrics(self) -> Section:
        several = any(len(curve.runs) > 1 for curve in self.curves)
        figures = []
        for number, metric in enumerate(self.metrics):
            share = self._is_share(metric)
            for setting, members in self._settings():
                strokes = self._strokes(members, metric)
                levels = self.targets if number == 0 else ()
                figures += self._draw(_title(metric, setting), metric, strokes, levels=levels, percent=share)
        note = "Lines are means over seeds, bands one standard deviation. " if several else ""
        return self._section("Over the rounds", note + ("Dotted across: the targets." if self.targets else ""), figures)

    def _difference(self) -> Section:
        figures = []
        metric = self.metrics[0]
        names = set()
        for setting, members in self._settings():
            baseline = baseline_of(members)
            names.add(baseline.name)
            others = [curve for curve in members if curve is not baseline]
            strokes = self._strokes(others, metric, minus=baseline)
            title = _title(f"{metric} minus that of {baseline.name}", setting)
            figures += self._draw(title, "difference", strokes, levels=(0.0,), percent=self._is_share(metric))
        better = "Below" if lower_is_better(metric) else "Above"
        note = f"{better} zero: better than {' or '.join(sorted(names))} in that round."
        section = self._section("Difference to the baseline", note, figures)
        return replace(section, legend=[key for key in section.legend if names != {key[1]}])

    def _norms(self) -> Section:
        layers = [match.group(1) for tag in self.tags if (match := re.fullmatch(r"norms/(.+)/N", tag))]
        kinds = [kind for kind in KINDS if kind in layers]
        figures = self._norm_figures(kinds)
        folded = self._norm_figures([layer for layer in layers if layer not in KINDS])
        for setting, members in self._settings():
            strokes = self._strokes(members, "norms/all/N_over_E")
            figures += self._draw(_title("N / E, whole model", setting), "N / E", strokes, limits=(0.0, 1.05))
        note = "N, solid: the norm of the average update. E, dashed: the average norm of the clients' updates."
        return self._section("Norms of the updates", note, figures, folded)

    def _norm_figures(self, layers: Iterable[str]) -> list[str]:
        figures = []
        for layer in layers:
            for setting, members in self._settings():
                strokes = self._strokes(members, f"norms/{layer}/N") + self._strokes(
                    members, f"norms/{layer}/E", dash=_DASHED
                )
                figures += self._draw(_title(f"N and E, {_said(layer)}", setting), "norm", strokes, scale="log")
        return figures

    def _moves(self) -> Section:
        figures = []
        layers = [kind for kind in KINDS if f"norms/{kind}/move" in self.tags]
        for layer in layers:
            for setting, members in self._settings():
                strokes = self._strokes(members, f"norms/{layer}/move") + self._strokes(
                    members, f"norms/{layer}/E", dash=_DASHED
                )
                figures += self._draw(_title(f"Move and E, {_said(layer)}", setting), "norm", strokes, scale="log")
        for setting, members in self._settings():
            strokes = self._strokes(members, "norms/all/integral")
            figures += self._draw(_title("Sum of the moves, whole model", setting), "sum of norms", strokes)
        note = "Solid: the norm of what the server changed in a round. E, dashed: the clients' average norm."
        return self._section("How far the server moved", note, figures)

    def _angles(self) -> list[Section]:
        """Clients are other ones with another seed: a figure is of one run, the first of its curve."""
        sections = []
        for group, what in (("angles", "Angles"), ("angles_smoothed", "Smoothed angles")):
            clients = sorted({tag for tag in self.tags if re.fullmatch(rf"{group}/client_\d+", tag)})
            summaries = [f"{group}/quantile_{share}" for share in (10, 50, 90)]
            firsts = [curve.runs[0].scalars for curve in self.curves]
            drawn = [scalars[tag].values for scalars in firsts for tag in (*clients, *summaries) if tag in scalars]
            limits = _limits(np.concatenate(drawn)) if drawn else None
            figures = []
            for curve in self.curves:
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
            note = "Between a client's update and the average one." + (
                "" if clients else " Median, with the 10 % and 90 % quantiles dashed."
            )
            sections.append(Section(f"{what} of the clients", note, figures, legend))
        return sections

    def _losses(self) -> Section:
        tags = ["train/loss", *(tag for tag in self.tags if tag.startswith("val") and lower_is_better(tag))]
        tags += sorted(tag for tag in self.tags if tag.startswith("divergence/"))
        return self._section(
            "Loss and divergence", "", self._plain_figures(tag for tag in tags if tag not in self.metrics)
        )

    def _spread_over_clients(self) -> Section:
        tags = sorted(tag for tag in self.tags if tag.startswith("clients/") and tag.endswith(("_mean", "_worst")))
        return self._section(
            "Evaluated client by client", "Worst: the mean of the worst tenth.", self._plain_figures(tags)
        )

    def _plain_figures(self, tags: Iterable[str]) -> list[str]:
        figures = []
        for tag in tags:
            for setting, members in self._settings():
                figures += self._draw(_title(tag, setting), tag.rpartition("/")[2], self._strokes(members, tag))
        return figures

    def _settings(self) -> list[tuple[str, list[Curve]]]:
        return [(setting, [curve for curve in self.curves if curve.setting == setting]) for setting in self.settings]

    def _strokes(
        self, curves: Iterable[Curve], tag: str, minus: Curve | None = None, dash: object = None
    ) -> list[Stroke]:
        bands = [(curve, band(curve, tag, minus)) for curve in curves]
        return [
            Stroke(found.rounds, found.mean, self.colours[curve.name], found.std, dash)
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
        """No figure without a line."""
        if not strokes:
            return []
        if scale == "log" and not any((stroke.y > 0).any() for stroke in strokes):
            scale = "linear"
        return [figure(title, ylabel, strokes, scale, levels, percent, limits)]

    def _section(self, title: str, note: str, figures: list[str], folded: list[str] | None = None) -> Section:
        legend = [(colour, name) for name, colour in self.colours.items()]
        return Section(title, note, figures, legend, folded or [])

    def _is_share(self, metric: str) -> bool:
        values = [run.scalars[metric].values for curve in self.curves for run in curve.runs if metric in run.scalars]
        return not lower_is_better(metric) and all(np.nanmin(each) >= 0 and np.nanmax(each) <= 1 for each in values)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """For figures that are compared with each other."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin


def _title(what: str, setting: str) -> str:
    return f"{what} · {setting}" if setting else what


def _said(layer: str) -> str:
    return {"all": "whole model", "fully_connected": "fully connected layers", "convolution": "convolutions"}.get(
        layer, layer
    )
