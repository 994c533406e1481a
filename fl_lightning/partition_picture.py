"""Who owns what, as a picture: clients across, classes upwards, the clients' sizes above."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fl_lightning.data.ownership import Ownership

#: up to these numbers every client and class has a bubble of its own
_MOST_BUBBLES = {"clients": 50, "classes": 25}
#: in points: the legend beside the picture has room for it
_WIDEST_BUBBLE = 36
#: clients beyond this are averaged, several a column
_MOST_COLUMNS = 1000
#: of Okabe and Ito's palette, which the colour-blind can tell apart
_BLUE, _ORANGE = "#0072B2", "#D55E00"


def partition_figure(ownership: Ownership) -> Figure:
    """Bubbles for few clients; for many a map of what each client's data consists of."""
    figure = Figure(figsize=(10, 6), dpi=100)
    FigureCanvasAgg(figure)
    lines = [line for text in (ownership.source, ownership.partition) for line in textwrap.wrap(text, 115)]
    figure.text(0.09, 0.985, "\n".join(lines[:4]), va="top", fontsize=10)
    top = 0.945 - 0.028 * len(lines[:4])
    counts = ownership.counts
    if counts is None:
        _draw_sizes(figure.add_axes((0.09, 0.1, 0.785, top - 0.1)), ownership)
        return figure
    small = len(counts) <= _MOST_BUBBLES["clients"] and counts.shape[1] <= _MOST_BUBBLES["classes"]
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
    """The picture as pixels: height × width × RGB."""
    figure = partition_figure(ownership)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_sizes(axes: Axes, ownership: Ownership, named: bool = True) -> None:
    sizes = ownership.sizes
    if len(sizes) <= _MOST_BUBBLES["clients"]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7, color=_BLUE)
    else:
        sizes = _columns(sizes)
        edges = np.linspace(0, len(ownership.sizes), len(sizes) + 1)
        axes.stairs(sizes, edges, baseline=0.01, fill=True, color=_BLUE)  # above 0, for a logarithmic axis
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
    if count <= _MOST_BUBBLES["clients"]:
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
    width = min(0.95 * 72 * cell, _WIDEST_BUBBLE)  # in points; the largest bubble fills its cell
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
        labelspacing=max(1.2, 0.6 * width / 10),  # in units of the font's 10 points
        handletextpad=max(0.8, 0.5 * width / 10),
    )
    axes.spines[["top", "right"]].set_visible(False)


def _draw_map(figure: Figure, axes: Axes, ownership: Ownership) -> None:
    """Many clients with the same two main classes stand side by side: in their own order nothing could be seen."""
    counts = ownership.counts
    assert counts is not None
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    left = -0.5
    if len(counts) > _MOST_BUBBLES["clients"]:
        main = np.argsort(-shares, axis=1, kind="stable")[:, :2]
        main[np.take_along_axis(shares, main, axis=1) == 0] = -1  # of a class of which it has nothing
        shares = shares[np.lexsort(main.T[::-1])]
        left = 0.0
    image = np.ma.masked_equal(_columns(shares).T, 0.0)
    image_of = axes.imshow(
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
    axes.set_xlabel("clients, ordered by the two classes of which they have most" if left == 0 else "client")
    axes.set_ylabel("class")
    if counts.shape[1] <= _MOST_BUBBLES["classes"]:
        axes.set_yticks(range(counts.shape[1]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    box = axes.get_position()
    bar = figure.colorbar(image_of, cax=figure.add_axes((box.x1 + 0.015, box.y0, 0.015, box.height)))
    bar.set_label("share of the client's samples")


def _columns(values: np.ndarray) -> np.ndarray:
    """Means over neighbouring clients, if there are more of them than columns."""
    if len(values) <= _MOST_COLUMNS:
        return values
    return np.stack([part.mean(axis=0) for part in np.array_split(values, _MOST_COLUMNS)])


def _map_colours() -> Colormap:
    """Light for little, dark for much, white for nothing."""
    from matplotlib import colormaps

    return ListedColormap(colormaps["YlGnBu"](np.linspace(0.1, 1, 256))).with_extremes(bad="white")
