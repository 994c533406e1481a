"""Copies the results of a comparison into this folder: its table, a picture of its curves, and how they were made.

    python results/publish.py runs/suites/fedadp_table1_mnist results/fedadp/table1_mnist \
        --command "fl-lightning compare configs/papers/fedadp/fedadp_table1_mnist.yaml --jobs 2"

The runs themselves are kept in runs.tar.xz, without checkpoints that no other run needs. To add further cells or seeds
on any machine, unpack it into the folder of the comparison and repeat the command: runs that have finished are not run
again.
"""

import argparse
import json
import tarfile
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import yaml
from matplotlib import pyplot

from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments.runs import Run, find_runs
from fl_lightning.reports.curves import Curve, band
from fl_lightning.reports.figures import PALETTE

COLOURS = PALETTE["light"]
#: files of a run that a comparison does not read
NOT_KEPT = ("run.lock", "fit.log")


def main() -> None:
    """Publish one comparison."""
    arguments = parsed_arguments()
    found, _ = find_runs([arguments.comparison])
    runs = [run for run in found if run.record.get("finished")]
    target: Path = arguments.target
    target.mkdir(parents=True, exist_ok=True)
    for name in ("table.md", "table.csv"):
        (target / name).write_text((arguments.comparison / name).read_text())
    cells = json.loads((arguments.comparison / "table.json").read_text())["cells"]
    for tag in arguments.tags:
        file = target / f"{file_name(tag)}.svg"
        if all(cell["x"] for cell in cells):
            draw_against_parameter(cells, tag, file)
        else:
            draw(curves_of(runs, cells), tag, arguments.levels, file, above=arguments.above)
    for tag in arguments.differences:
        draw(curves_of(runs, cells), tag, [0], target / f"{file_name(tag)}_difference.svg", "FedAvg")
    keep_runs(runs, arguments.comparison, target / "runs.tar.xz", arguments.checkpoints)
    (target / "README.md").write_text(page(arguments, runs))
    print(f"Published {len(runs)} runs in {target}")


def parsed_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparison", type=Path, help="folder that fl-lightning compare wrote")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument("--command", required=True, help="the command that made the comparison")
    parser.add_argument("--tags", nargs="*", default=["val/accuracy"], help="what to draw over the rounds")
    parser.add_argument("--differences", nargs="*", default=[], help="tags whose difference from FedAvg is drawn")
    parser.add_argument("--checkpoints", nargs="*", default=[], help="rows whose checkpoints other runs need")
    parser.add_argument("--note", help="what differs from the suite")
    parser.add_argument("--above", type=float, help="lower end of the axis of the tags")
    parser.add_argument("--levels", nargs="*", type=float, default=[], help="targets, drawn as dotted lines")
    return parser.parse_args()


def file_name(tag: str) -> str:
    """Return a tag as the name of a file."""
    return tag.replace("/", "_")


def curves_of(runs: list[Run], cells: list[dict[str, Any]]) -> list[Curve]:
    """Return one curve per cell. If one row has a parameter, its values are curves of the same panel as the others."""
    lone_row = len({cell["row"] for cell in cells if cell["x"]}) == 1
    curves = []
    for cell in cells:
        members = [run for run in runs if (run.record["row"], run.record["column"]) == (cell["row"], cell["column"])]
        if members and cell["x"] and lone_row:
            curves.append(Curve(f"{cell['row']}, {cell['x']['label']} = {cell['column']}", "", tuple(members)))
        elif members:
            curves.append(Curve(cell["row"], cell["column"], tuple(members)))
    return curves


def keep_runs(runs: list[Run], comparison: Path, file: Path, with_checkpoints: list[str]) -> None:
    """Pack what a comparison reads of its runs, and the last checkpoints of some rows."""
    with tarfile.open(file, "w:xz") as archive:
        for run in runs:
            checkpoints = [RunFolder(run.folder).checkpoint] if run.record["row"] in with_checkpoints else []
            for path in [*sorted(run.folder.iterdir()), *checkpoints]:
                if path.is_file() and path.name not in NOT_KEPT:
                    archive.add(path, path.relative_to(comparison))


def draw(
    curves: list[Curve],
    tag: str,
    levels: list[float],
    file: Path,
    baseline: str | None = None,
    above: float | None = None,
) -> None:
    """Draw a tag over the rounds: a panel per column, a line per row, and a band if there are several seeds.

    With a baseline, draw the difference from it, seed by seed. With ``above``, lower values are not in the picture.
    """
    columns = list(dict.fromkeys(curve.setting for curve in curves))
    rows = list(dict.fromkeys(curve.name for curve in curves))
    width = min(3, len(columns))
    height = -(-len(columns) // width)
    size = (7.2, 4.6) if len(columns) == 1 else (3.4 * width, 2.7 * height + 0.4)
    figure, axes = pyplot.subplots(height, width, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for panel in axes.flat[len(columns) :]:
        panel.set_visible(False)
    for panel, column in zip(axes.flat, columns, strict=False):
        minus = next((curve for curve in curves if (curve.name, curve.setting) == (baseline, column)), None)
        for curve in (curve for curve in curves if curve.setting == column and curve is not minus):
            points = band(curve, tag, minus)
            if points is None:
                continue
            again, place = divmod(rows.index(curve.name), len(COLOURS))  # once all colours are used, lines are dashed
            colour = COLOURS[place]
            panel.plot(points.rounds, points.mean, ("-", "--")[again], color=colour, label=curve.name, linewidth=1.4)
            if points.std is not None:
                low, high = points.mean - points.std, points.mean + points.std
                panel.fill_between(points.rounds, low, high, color=colour, alpha=0.2, linewidth=0)
        for level in levels:
            panel.axhline(level, color="#888888", linewidth=1, linestyle=":")
        panel.set_title(column, fontsize=9)
        panel.set_xlabel("round", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        if above is not None:
            highest = panel.dataLim.ymax
            panel.set_ylim(above, highest + 0.05 * (highest - above))
    axes[0, 0].set_ylabel(f"{tag} − {baseline}" if baseline else tag, fontsize=9)
    shown = {label: line for panel in axes.flat for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    handles, labels = list(shown.values()), list(shown)
    ncols = min(len(labels), 3 if width == 1 else 6)
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, fontsize=9, frameon=False)
    figure.savefig(file, metadata={"Date": None}, facecolor="white")


def draw_against_parameter(cells: list[dict[str, Any]], tag: str, file: Path) -> None:
    """Draw the final value of a tag against the parameter that varies between the columns: a line per row."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    for number, row in enumerate(rows):
        points = [cell for cell in cells if cell["row"] == row and tag in cell["scores"]]
        again, place = divmod(number, len(COLOURS))  # once all colours are used, they repeat with other marks
        axes.plot(
            [cell["x"]["value"] for cell in points],
            [cell["scores"][tag]["final"]["mean"] for cell in points],
            ("-o", "--s", ":^")[again % 3],
            color=COLOURS[place],
            label=row,
            linewidth=1.4,
            markersize=4,
        )
    axes.set_xlabel(cells[0]["x"]["label"], fontsize=9)
    axes.set_ylabel(f"{tag} after the last round", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    figure.savefig(file, metadata={"Date": None}, facecolor="white")


def page(arguments: argparse.Namespace, runs: list[Run]) -> str:
    """Return the text beside the table: how the results were made."""
    title, _, table = (arguments.comparison / "table.md").read_text().partition("\n")
    note = f"{arguments.note}\n\n" if arguments.note else ""
    rounds = sum(run.rounds for run in runs)
    pictures = "\n".join(
        [f"![{tag}]({file_name(tag)}.svg)" for tag in arguments.tags]
        + [f"![{tag} minus FedAvg's]({file_name(tag)}_difference.svg)" for tag in arguments.differences]
    )
    return (
        f"{title}\n\n{note}{shortened(table)}\n\n{pictures}\n\n"
        f"- Command: `{arguments.command}`\n"
        f"- {len(runs)} runs, {rounds} rounds: {origin(runs)}\n"
    )


def origin(runs: list[Run]) -> str:
    """Return when, on what and with which commits the runs were made."""
    made = sorted(
        (yaml.safe_load(RunFolder(run.folder).provenance.read_text()) for run in runs), key=itemgetter("started")
    )
    days = dict.fromkeys(each["started"][:10] for each in made)
    machines = dict.fromkeys(f"{each['machine']['cpu']} ({each['machine']['device']})" for each in made)
    versions = dict.fromkeys(each["packages"]["torch"] for each in made)
    commits = dict.fromkeys(code["commit"][:7] for each in made for code in each["code"].values() if "commit" in code)
    names = [", ".join(values) for values in (days, machines, versions, commits)]
    return "{}, on {}, torch {}, commits {}".format(*names)


def shortened(table: str) -> str:
    """Leave out cells that were not run, and the times, which depend on what else ran on the machine."""
    header, rule, *rows = [line.strip("|").split(" | ") for line in table.strip().splitlines()]
    names = [name.strip() for name in header]
    kept = [index for index, name in enumerate(names) if name != "time"]
    run = [row for row in rows if not row[names.index("seeds")].strip().startswith("0 of")]
    return "\n".join("|" + " | ".join(row[index] for index in kept) + "|" for row in (header, rule, *run))


if __name__ == "__main__":
    main()
