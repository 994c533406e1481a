"""Figures as SVG in the page's colours, light or dark: matplotlib draws with stand-ins, CSS variables replace them."""

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

#: distinguishable with any colour vision (Okabe and Ito), on white and on black
PALETTE = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a9bd0", "#555555"),
    "dark": ("#4aa8e0", "#f0803c", "#2fc79a", "#e39bc3", "#e6b422", "#8fd0f5", "#bbbbbb"),
}
#: after the last colour they start again with another dash
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
# Stand-ins, for matplotlib wants colours that it knows.
_INK, _FAINT = "#010203", "#010204"

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Stroke:
    """A line of a figure, with a band around it if it has a width.

    Args:
        colour: the number of the curve; its colour and dash follow from it.
        dash: another dash than the curve's own, to tell two quantities of one curve apart.
    """

    x: np.ndarray
    y: np.ndarray
    colour: int
    width: np.ndarray | None = None
    dash: Any = None
    thin: bool = False


def dash_of(colour: int) -> int:
    """Which of :data:`DASHES` the n-th curve has."""
    return colour // len(PALETTE["light"]) % len(DASHES)


def figure(
    title: str,
    ylabel: str,
    strokes: Sequence[Stroke],
    scale: Scale = "linear",
    levels: Sequence[float] = (),
    percent: bool = False,
    limits: tuple[float, float] | None = None,
) -> str:
    """Lines over rounds, as an HTML figure. ``levels`` are drawn across, as targets or a zero."""
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
            colour = _stand_in(stroke.colour)
            dash = DASHES[dash_of(stroke.colour)] if stroke.dash is None else stroke.dash
            if stroke.width is not None:
                low, high = stroke.y - stroke.width, stroke.y + stroke.width
                if scale == "log":
                    low = np.maximum(low, stroke.y / 10)
                axes.fill_between(stroke.x, low, high, color=colour, alpha=0.18, linewidth=0)
            alone = len(stroke.x) == 1
            axes.plot(
                stroke.x,
                stroke.y,
                color=colour,
                linestyle=dash,
                linewidth=1.0 if stroke.thin else 1.7,
                marker="o" if alone else None,
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
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if limits is not None:
            axes.set_ylim(*limits)
        axes.set_xlabel("round")
        axes.set_ylabel(ylabel)
        text = io.StringIO()
        drawing.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = _inlined(text.getvalue(), f"{title}: {ylabel} over rounds")
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _plain_numbers(**arguments: Any) -> "Formatter":
    """On a logarithmic axis: 0.1 instead of a power of ten, and only where matplotlib finds room for it."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    return Plain(**arguments)


def _stand_in(colour: int) -> str:
    return f"#0300{colour % len(PALETTE['light']):02x}"


def _inlined(svg: str, label: str) -> str:
    """For use within a page: no prologue, no fixed size, no names that another figure has too, colours by variable."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(
        r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path.group()), svg
    )  # a tenth of a point is enough
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0300([0-9a-f]{2})", lambda match: f"var(--c{int(match.group(1), 16)})", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_FAINT, "var(--faint)")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
