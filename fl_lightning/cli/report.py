"""``fl-lightning report``: figures, a table and the configurations of runs, on one page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.cli.options import check_output_file
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.results import summarise
from fl_lightning.experiments.runs import Run, evaluated_tags, find_runs
from fl_lightning.reports.curves import group_runs
from fl_lightning.reports.page import write_page


def main(args: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = _argument_parser().parse_args(args)
    check_output_file(options.output)
    runs, notes = find_runs(options.runs)
    metric = options.metric or _default_metric(runs)
    if not any(metric in run.scalars for run in runs):
        logged = ", ".join(sorted(evaluated_tags(runs)))
        raise MisconfigurationError(f"metric={metric}, but no run logged it: set --metric to one of {logged}")
    curves = group_runs(runs)
    results = [summarise(curve.name, curve.setting, curve.runs, len(curve.runs), [metric], []) for curve in curves]
    title = options.runs[0].resolve().name if len(options.runs) == 1 else f"{len(curves)} experiments"
    write_page(options.output, title, curves, results, [metric], [], notes)
    for note in notes:
        print(f"Note: {note}")
    print(f"{_count(len(runs), 'run')}, {_count(len(curves), 'curve')}: {options.output}", flush=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _default_metric(runs: Sequence[Run]) -> str:
    """Return the name of the validation accuracy, or else of the first validation metric."""
    tags = evaluated_tags(runs)
    accuracies = [tag for tag in tags if "acc" in tag]
    return "val/accuracy" if "val/accuracy" in tags else (accuracies + tags + ["train/loss"])[0]


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-lightning report",
        description="Draw runs on one self-contained HTML page. Runs that differ only in their seed form one curve.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, or a folder of runs")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", default=Path("report.html"), help="page to write (default: report.html)"
    )
    parser.add_argument("--metric", metavar="NAME", help="metric to compare (default: the validation accuracy)")
    return parser
