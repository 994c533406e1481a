"""A picture of which client owns what: clients from left to right, classes from bottom to top, and sizes above them."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fl_lightning.data.ownership.counts import Ownership

#: Up to these numbers, every client and class has its own bubble; beyond them, a map is drawn.
_MAX_BUBBLES = {"clients": 50, "classes": 25}
#: Maximum width of a bubble in points, for which the legend has room.
_MAX_BUBBLE_WIDTH = 36
#: With more clients than this, several are averaged per column.
_MAX_COLUMNS = 1000
#: From Okabe and Ito's palette, which colour-blind readers can tell apart.
_BLUE, _ORANGE = "#0072B2", "#D55E00"


def partition_figure(ownership: Ownership) -> Figure:
    """Draw bubbles for few clients, or a map of the classes' shares for many."""
    figure = Figure(figsize=(10, 6), dpi=100)
    FigureCanvasAgg(figure)
    lines = [line for text in (ownership.source, ownership.partition) for line in textwrap.wrap(text, 115)]
    figure.text(0.09, 0.985, "\n".join(lines[:4]), va="top", fontsize=10)
    top = 0.945 - 0.028 * len(lines[:4])
    counts = ownership.counts
    if counts is None:
        _draw_sizes(figure.add_axes((0.09, 0.1, 0.785, top - 0.1)), ownership)
        return figure
    small = len(counts) <= _MAX_BUBBLES["clients"] and counts.shape[1] <= _MAX_BUBBLES["classes"]
    above = figure.add_axes((0.09, top - 0.2, 0.785, 0.2))
    below = figure.add_axes((0.09, 0.09, 0.785, top - 0.2 - (0.12 if small else 0.2)))
    _draw_sizes(above, ownership, named=not small)
    if small:
        above.tick_params(labelbottom=False)
        _draw_bubbles(figure, below, ownership)
    else:
        _draw_map(figure, below, ownership)
    return figure


def partition_image(ownership: Ownership) -> np.ndarray:
    """Return the picture as an array of height × width × RGB."""
    figure = partition_figure(ownership)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_sizes(axes: Axes, ownership: Ownership, named: bool = True) -> None:
    sizes = ownership.sizes
    if len(sizes) <= _MAX_BUBBLES["clients"]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7, color=_BLUE)
    else:
        sizes = _averaged(sizes)
        edges = np.linspace(0, len(ownership.sizes), len(sizes) + 1)
        axes.stairs(sizes, edges, baseline=0.01, fill=True, color=_BLUE)  # log axes cannot start at 0
    if sizes.max() > 30 * max(sizes.min(), 1):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7 * max(sizes.min(), 1))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    else:
        axes.set_ylim(0, 1.08 * sizes.max())
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _number_clients(axes, ownership)
    axes.set_ylabel("samples" if len(sizes) == len(ownership.sizes) else "samples, mean")
    axes.set_xlabel("client" if named else "")
    axes.spines[["top", "right"]].set_visible(False)


def _number_clients(axes: Axes, ownership: Ownership) -> None:
    count = len(ownership.clients)
    if count <= _MAX_BUBBLES["clients"]:
        axes.set_xlim(-0.5, count - 0.5)
        step = 1 if count <= 30 else 5
        axes.set_xticks(range(0, count, step), [str(client) for client in ownership.clients[::step]])
    else:
        axes.set_xlim(0, count)
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))


def _draw_bubbles(figure: Figure, axes: Axes, ownership: Ownership) -> None:
    counts = ownership.counts
    assert counts is not None
    _number_clients(axes, ownership)
    axes.set_ylim(-0.5, counts.shape[1] - 0.5)
    axes.set_yticks(range(counts.shape[1]))
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_axisbelow(True)
    axes.grid(color="0.92")
    box = axes.get_position()
    cell = min(box.width * figure.get_figwidth() / len(counts), box.height * figure.get_figheight() / counts.shape[1])
    width = min(0.95 * 72 * cell, _MAX_BUBBLE_WIDTH)  # in points; the largest bubble fills its cell
    area = width**2 / counts.max()
    clients, classes = np.nonzero(counts)
    axes.scatter(clients, classes, s=area * counts[clients, classes], color=_ORANGE, linewidths=0)
    for count in sorted({int(counts.max()), max(int(counts.max()) // 4, 1), max(int(counts.max()) // 16, 1)}):
        axes.scatter([], [], s=area * count, color=_ORANGE, linewidths=0, label=f"{count:,}")
    axes.legend(
        title="samples",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        labelspacing=max(1.2, 0.6 * width / 10),  # in units of the 10-point font
        handletextpad=max(0.8, 0.5 * width / 10),
    )
    axes.spines[["top", "right"]].set_visible(False)


def _draw_map(figure: Figure, axes: Axes, ownership: Ownership) -> None:
    """Draw each class's share of each client's data.

    Many clients are sorted by their two most frequent classes; otherwise the map would look like noise.
    """
    counts = ownership.counts
    assert counts is not None
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left = -0.5
    if len(counts) > _MAX_BUBBLES["clients"]:
        main = np.argsort(-shares, axis=1, kind="stable")[:, :2]
        main[np.take_along_axis(shares, main, axis=1) == 0] = -1  # the client has fewer than two classes
        shares = shares[np.lexsort(main.T[::-1])]
        left = 0.0
    image = np.ma.masked_equal(_averaged(shares).T, 0.0)
    artist = axes.imshow(
        image,
        cmap=_map_colours(),
        vmin=0,
        vmax=image.max(),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(left, left + len(counts), -0.5, counts.shape[1] - 0.5),
    )
    _number_clients(axes, ownership)
    axes.set_xlabel("clients, ordered by their two most frequent classes" if left == 0 else "client")
    axes.set_ylabel("class")
    if counts.shape[1] <= _MAX_BUBBLES["classes"]:
        axes.set_yticks(range(counts.shape[1]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    box = axes.get_position()
    bar = figure.colorbar(artist, cax=figure.add_axes((box.x1 + 0.015, box.y0, 0.015, box.height)))
    bar.set_label("share of the client's samples")


def _averaged(values: np.ndarray) -> np.ndarray:
    """Return means over neighbouring clients if there are more clients than columns, otherwise the values."""
    if len(values) <= _MAX_COLUMNS:
        return values
    return np.stack([part.mean(axis=0) for part in np.array_split(values, _MAX_COLUMNS)])


def _map_colours() -> Colormap:
    """Return a colour map from light for small shares to dark for large ones, with white for none."""
    from matplotlib import colormaps

    return ListedColormap(colormaps["YlGnBu"](np.linspace(0.1, 1, 256))).with_extremes(bad="white")
