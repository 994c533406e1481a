"""Writes what was measured: results.json, table.md and ratios.png."""

import json
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from contestants import ABSENT, HERE
from driver import Row
from tasks import TASKS

_COLUMNS = (
    "ratio to plain (quartiles)",
    "seconds per round",
    "start-up, s",
    "first round, s",
    "peak memory, MB",
    "accuracy",
    "result",
)
#: weights that differ by less than this are the same up to rounding
SAME_WEIGHTS = 1e-3
#: accuracies that differ by less than this are equal
SAME_ACCURACY = 0.005


@dataclass
class Results:
    """What was measured, and where.

    Args:
        rows: rows of each task.
        about: the machine, the versions, the data and so on.
    """

    rows: dict[str, list[Row]]
    about: dict[str, str]


def ratios(row: Row, plain: Row) -> list[float]:
    """Return the seconds per round divided by the plain loop's in the same turn, without the warm-up."""
    return [own / other for own, other in zip(row.seconds[1:], plain.seconds[1:], strict=True)]


def verdict(row: Row, plain: Row) -> str:
    """Return whether a contestant learned the same as the plain loop."""
    assert row.difference is not None
    if row is plain:
        return "reference"
    if row.difference < SAME_WEIGHTS:
        return f"same weights ({row.difference:.0e})"
    own, other = row.accuracy[-1], plain.accuracy[-1]
    if own is not None and other is not None and abs(own - other) < SAME_ACCURACY:
        return "same accuracy"
    return "**not equal**"


def machine() -> dict[str, str]:
    """Describe the machine and the code."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = f"{len(models)} × {models[0]}" if models else platform.processor()
    return {
        "machine": f"{cpu}, {platform.system()}",
        "python": platform.python_version(),
        "commit": commit or "unknown",
    }


def write(results: Results, folder: Path) -> None:
    """Write all three files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {task: [asdict(row) for row in rows] for task, rows in results.rows.items()}
    (folder / "results.json").write_text(json.dumps({"about": results.about, "tasks": rows}, indent=1) + "\n")
    (folder / "table.md").write_text(table(results))
    picture(results, folder / "ratios.png")


def table(results: Results) -> str:
    """Return the tables of all tasks in Markdown, the fastest contestant first."""
    lines = [f"- {name}: {value}" for name, value in results.about.items()]
    for task, rows in results.rows.items():
        plain = _plain(rows)
        lines += [
            "",
            f"**{task}: {TASKS[task].title}**",
            "",
            f"| | {' | '.join(_COLUMNS)} |",
            "| --- " * (len(_COLUMNS) + 1) + "|",
        ]
        for row in _ranked(rows):
            low, middle, high = _quartiles(ratios(row, plain))
            lines.append(
                f"| {_name(row)} | {middle:.2f} ({low:.2f}–{high:.2f}) | {statistics.median(row.seconds[1:]):.3f}"
                f" | {row.startup:.1f} | {row.first:.2f} | {'?' if row.peak_mb is None else f'{row.peak_mb:.0f}'}"
                f" | {'?' if row.accuracy[-1] is None else f'{row.accuracy[-1]:.4f}'} | {verdict(row, plain)} |"
            )
        skipped = [f"{row.label}: {row.skipped}" for row in rows if row.skipped]
        lines += [""] * bool(skipped) + [f"- Skipped: {reason}" for reason in skipped]
    lines += ["", *(f"- Not included: {name}, {reason}" for name, reason in ABSENT.items())]
    return "\n".join(lines) + "\n"


def picture(results: Results, path: Path) -> None:
    """Draw the ratios as horizontal bars, one panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [len(_ranked(rows)) for rows in results.rows.values()]
    figure, panels = pyplot.subplots(
        len(heights),
        1,
        figsize=(8, 0.34 * sum(heights) + 0.95 * len(heights) + 0.3),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for panel, (task, rows) in zip(panels[:, 0], results.rows.items(), strict=True):
        plain, ranked = _plain(rows), _ranked(rows)
        spread = [_quartiles(ratios(row, plain)) for row in ranked]
        middles = [middle for _, middle, _ in spread]
        colours = ["0.55" if row is plain else "tab:blue" if row.key.startswith("ours") else "0.8" for row in ranked]
        errors = [[middle - low for low, middle, _ in spread], [high - middle for _, middle, high in spread]]
        panel.barh(range(len(ranked)), middles, color=colours, xerr=errors, error_kw={"lw": 1, "ecolor": "0.35"})
        for place, (_, middle, high) in enumerate(spread):
            panel.annotate(f"{middle:.2f}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        panel.axvline(1, color="0.35", lw=0.8, ls=":")
        panel.set_yticks(range(len(ranked)), [row.label for row in ranked])
        panel.set_xlim(0, 1.15 * max(high for *_, high in spread))
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_title(f"{task}: {TASKS[task].title}", loc="left", fontsize=10)
    panels[-1, 0].set_xlabel("time per round, relative to the plain loop (median and quartiles)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _plain(rows: Sequence[Row]) -> Row:
    return next(row for row in rows if row.key == "plain")


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the contestants that have finished, the fastest first."""
    plain = _plain(rows)
    return sorted((row for row in rows if not row.skipped), key=lambda row: statistics.median(ratios(row, plain)))


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _name(row: Row) -> str:
    package = next(iter(row.versions))  # a contestant's own package comes first
    return f"{row.label} ({row.versions[package]})" if package != "torch" else row.label
