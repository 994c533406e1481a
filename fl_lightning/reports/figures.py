"""Figures as SVG in the colours of the page, light or dark.

Matplotlib draws with placeholder colours, which are then replaced by CSS variables.
"""

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.ticker import Formatter

#: after Okabe and Ito: colour-blind readers can tell them apart, on white and on black
PALETTE = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a9bd0", "#555555"),
    "dark": ("#4aa8e0", "#f0803c", "#2fc79a", "#e39bc3", "#e6b422", "#8fd0f5", "#bbbbbb"),
}
#: when the colours are used up, they start again with the next dash
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
# placeholders, because matplotlib accepts only colours that it knows
_INK, _FAINT = "#010203", "#010204"

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Stroke:
    """A line of a figure.

    Args:
        x: the rounds, or the values of a parameter.
        y: the values.
        colour: the number of the curve, which determines its colour and its dash.
        width: half the width of a band around the line; None draws no band.
        dash: a dash other than the curve's own, to tell two quantities of one curve apart.
        thin: whether to draw a thin line, for a figure with many of them.
        points: whether to mark every point.
    """

    x: np.ndarray
    y: np.ndarray
    colour: int
    width: np.ndarray | None = None
    dash: Any = None
    thin: bool = False
    points: bool = False


def dash_of(colour: int) -> int:
    """Return the index of the dash in :data:`DASHES` that belongs to a colour."""
    return colour // len(PALETTE["light"]) % len(DASHES)


def figure(
    title: str,
    ylabel: str,
    strokes: Sequence[Stroke],
    scale: Scale = "linear",
    levels: Sequence[float] = (),
    percent: bool = False,
    limits: tuple[float, float] | None = None,
    xlabel: str = "round",
) -> str:
    """Draw lines, and return them as an HTML figure.

    Args:
        title: the caption.
        ylabel: what the y axis shows.
        strokes: the lines.
        scale: the scale of the y axis.
        levels: values at which a horizontal line is drawn, such as targets or zero.
        percent: whether the y axis is labelled in per cent.
        limits: the ends of the y axis; None fits them to the lines.
        xlabel: what the x axis shows. Rounds are whole numbers.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": hashlib.sha1(
            b"".join([title.encode(), *(stroke.y.tobytes() for stroke in strokes)])
        ).hexdigest(),
        "font.size": 10.5,
        "font.family": "sans-serif",
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):  # type: ignore[arg-type]
        drawing = Figure(figsize=(4.9, 3.1), layout="constrained")
        axes = drawing.add_subplot()
        for stroke in strokes:
            colour = _placeholder(stroke.colour)
            dash = DASHES[dash_of(stroke.colour)] if stroke.dash is None else stroke.dash
            if stroke.width is not None:
                low, high = stroke.y - stroke.width, stroke.y + stroke.width
                if scale == "log":
                    low = np.maximum(low, stroke.y / 10)
                axes.fill_between(stroke.x, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(
                stroke.x,
                stroke.y,
                color=colour,
                linestyle=dash,
                linewidth=1.0 if stroke.thin else 1.7,
                marker="o" if stroke.points or len(stroke.x) == 1 else None,
                markersize=4,
            )
        for level in levels:
            axes.axhline(level, color=_FAINT, linewidth=1, linestyle=(0, (2, 2)))
        axes.set_yscale(scale)
        if scale == "log":
            axes.yaxis.set_major_formatter(_plain_numbers())
            axes.yaxis.set_minor_formatter(_plain_numbers(minor_thresholds=(1.2, 0.4)))
        axes.grid(axis="y", color=_FAINT, alpha=0.35, linewidth=0.6)
        axes.tick_params(color=_FAINT, which="both")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=xlabel == "round"))
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if limits is not None:
            axes.set_ylim(*limits)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        text = io.StringIO()
        drawing.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = _inline(text.getvalue(), f"{title}: {ylabel} over {'rounds' if xlabel == 'round' else xlabel}")
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _plain_numbers(**arguments: Any) -> "Formatter":
    """Return a formatter for a logarithmic axis that prints 0.1 instead of a power of ten, where there is room."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    return Plain(**arguments)


def _placeholder(colour: int) -> str:
    return f"#0300{colour % len(PALETTE['light']):02x}"


def _inline(svg: str, label: str) -> str:
    """Prepare an SVG for a page: without prologue, fixed size and repeated ids, and with the colours as variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # A tenth of a point is precise enough.
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path.group()), svg)
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0300([0-9a-f]{2})", lambda match: f"var(--c{int(match.group(1), 16)})", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_FAINT, "var(--faint)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
