"""``fl-lightning report``: the figures, the table and the configurations of runs, on one page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.reporting.curves import Curve, group
from fl_lightning.reporting.page import write_page
from fl_lightning.reporting.runs import find_runs
from fl_lightning.reporting.table import summarise
from fl_lightning.tags import evaluated


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    options = _parser().parse_args(args)
    if options.output.is_dir():
        raise MisconfigurationException(
            f"output={options.output} is a folder: give a file, {options.output}/report.html"
        )
    if not options.output.resolve().parent.is_dir():
        raise MisconfigurationException(
            f"output={options.output}: there is no folder {options.output.parent}, make it first"
        )
    runs, notes = find_runs(options.runs)
    curves = group(runs)
    metric = options.metric or _metric(curves)
    if not any(metric in run.scalars for run in runs):
        logged = ", ".join(sorted({tag for run in runs for tag in evaluated(run.scalars)}))
        raise MisconfigurationException(f"metric={metric}, but no run logged it: set --metric to one of {logged}")
    lines = [summarise(curve.name, curve.setting, curve.runs, len(curve.runs), [metric], []) for curve in curves]
    title = options.runs[0].resolve().name if len(options.runs) == 1 else f"{len(curves)} experiments"
    write_page(options.output, title, curves, lines, [metric], [], notes)
    for note in notes:
        print(f"Note: {note}")
    print(f"{_counted(len(runs), 'run')}, {_counted(len(curves), 'curve')}: {options.output}", flush=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _metric(curves: Sequence[Curve]) -> str:
    """The validation accuracy by whatever name, or else what is validated first."""
    tags = evaluated(dict.fromkeys(tag for curve in curves for run in curve.runs for tag in run.scalars))
    accuracies = [tag for tag in tags if "acc" in tag]
    return "val/accuracy" if "val/accuracy" in tags else (accuracies + tags + ["train/loss"])[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-lightning report",
        description="Draws runs onto one self-contained HTML page. Runs that differ only in their seed are one curve.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run, or of many")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", default=Path("report.html"), help="the page (default: report.html)"
    )
    parser.add_argument("--metric", metavar="NAME", help="what is compared (default: the validation accuracy)")
    return parser


if __name__ == "__main__":
    main()
