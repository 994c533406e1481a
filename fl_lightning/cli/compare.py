"""``fl-lightning compare``: run a suite, then print and save a table of its results."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.cli.signals import describe, exit_code
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.cells import Cell, Suite
from fl_lightning.experiments.jobs import Task, run_all
from fl_lightning.experiments.plan import plan
from fl_lightning.experiments.results import CellResult, compare_with_baseline, summarise
from fl_lightning.experiments.runs import Run, evaluated_tags, read_run
from fl_lightning.experiments.suite import load_suite
from fl_lightning.experiments.table import as_csv, as_json, as_markdown
from fl_lightning.reports.curves import Curve
from fl_lightning.reports.page import write_page


def main(args: Sequence[str] | None = None) -> None:
    """Run the command. It exits with code 1 if a run failed, 130 after Ctrl-C and 143 after SIGTERM."""
    options, fit_options = _argument_parser().parse_known_args(args)
    if options.jobs < 1:
        raise MisconfigurationError(f"jobs={options.jobs}: set --jobs to 1 or more")
    suite = load_suite(options.suite, options.seeds)
    chosen = _choose(suite, options.only)
    if options.dry:
        from fl_lightning.cli.dry import dry_run  # it imports Lightning

        sys.exit(dry_run(suite, chosen, options.jobs, fit_options))
    output = options.output or Path("runs", "suites", suite.name)  # separate from the runs of fit
    try:
        tasks = plan(suite, output, fit_options, chosen=chosen)
    except KeyboardInterrupt as interrupt:
        print(f"{describe(interrupt)}: no run has started.", file=sys.stderr)
        sys.exit(exit_code(interrupt))
    try:
        failed = run_all([task for task in tasks if task.cell.name in chosen], options.jobs)
    except KeyboardInterrupt as interrupt:
        finished = sum(task.finished for task in tasks)
        print(
            f"{describe(interrupt)}: {finished} of {len(tasks)} runs have finished; run the same command again to"
            " continue.",
            file=sys.stderr,
        )
        sys.exit(exit_code(interrupt))
    print(write_results(suite, tasks, output), flush=True)
    if failed:
        print(f"{len(failed)} of {len(tasks)} runs failed: {'; '.join(task.name for task in failed)}", file=sys.stderr)
        sys.exit(1)


def _choose(suite: Suite, only: Sequence[str]) -> set[str]:
    """Return the names of the cells to run: the cells that ``only`` names, and the cells that these need."""
    cells = {cell.name: cell for cell in suite.cells}
    chosen: dict[str, Cell] = {}
    for name in only:
        found = [cell for cell in suite.cells if name in (cell.row, cell.column, cell.name)]
        if not found:
            known = dict.fromkeys(each for cell in suite.cells for each in (cell.row, cell.column) if each)
            raise MisconfigurationError(
                f"only={name}: there is no such row, column or cell; the rows and columns are {'; '.join(known)}"
            )
        chosen |= {cell.name: cell for cell in found}
    waiting = list(chosen.values())
    while waiting:
        for name in waiting.pop().needs:
            waiting += [] if name in chosen else [cells[name]]
            chosen[name] = cells[name]
    return set(chosen or cells)


def write_results(suite: Suite, tasks: Sequence[Task], output: Path) -> str:
    """Write the table and the report of all runs that have results, and return a summary to print."""
    results: list[CellResult] = []
    curves: list[Curve] = []
    notes: list[str] = []
    lone_row = len({cell.row for cell in suite.cells if cell.x}) == 1
    for cell in suite.cells:
        runs: list[Run] = []
        for task in tasks:
            if task.cell == cell and task.folder.path.exists():
                try:
                    runs.append(read_run(task.folder.path))
                except MisconfigurationError as error:
                    notes.append(str(error))
            elif task.cell == cell and task.missing:
                notes.append(f"{task.name} was not run, because it needs {' and '.join(task.missing.values())}")
        seeds = 0 if cell.skip else len(suite.seeds)
        results.append(
            summarise(
                cell.row,
                cell.column,
                runs,
                seeds,
                suite.metrics,
                suite.targets,
                published=cell.published,
                skip=cell.skip,
                x=cell.x,
            )
        )
        if runs and cell.x and lone_row:  # the values of the parameter are the lines of one figure
            curves.append(Curve(cell.setting, "", tuple(runs)))
        elif runs:
            curves.append(Curve(cell.row, cell.setting, tuple(runs)))
    if suite.baseline is not None:
        results = compare_with_baseline(results, suite.baseline, final_values=not suite.stops_at_target)
    notes += _missing_metrics(suite, results, evaluated_tags(run for curve in curves for run in curve.runs))
    markdown = as_markdown(results)
    output.mkdir(parents=True, exist_ok=True)
    (output / "table.md").write_text(f"# {suite.title}\n\n{markdown}")
    (output / "table.csv").write_text(as_csv(results))
    (output / "table.json").write_text(as_json(suite.title, results))
    lines = [f"\n{suite.title}: {', '.join(suite.metrics)}\n", markdown, *(f"Note: {note}" for note in notes)]
    lines.append(f"Table:    {output}/table.md, table.csv, table.json")
    if curves:
        write_page(
            output / "report.html",
            suite.title,
            curves,
            results,
            suite.metrics,
            suite.targets,
            notes,
            baseline=suite.baseline,
        )
        lines.append(f"Report:   {output / 'report.html'}")
    lines.append(f"Curves:   tensorboard --logdir {output}")
    return "\n".join(lines)


def _missing_metrics(suite: Suite, results: Sequence[CellResult], logged: Sequence[str]) -> list[str]:
    """A note for each metric that no finished run logged. One that only some cells log may well be intended."""
    finished = [result for result in results if result.finished]
    return [
        f"no run logged {metric}: set metric to one of {', '.join(logged)}"
        for metric in suite.metrics
        if finished and not any(metric in result.scores for result in finished)
    ]


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-lightning compare",
        description="Run a suite, skip finished runs, resume interrupted ones, then print and save a table.",
        epilog="All other options are passed to fl-lightning fit in every run, for example --data.source.root ~/data.",
    )
    parser.add_argument(
        "suite", type=Path, metavar="SUITE.yaml", help="rows, columns, seeds, metric and more, see docs/comparisons.md"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds, overriding those in the suite")
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="number of parallel runs, which share the cores (default: 1)"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        default=[],
        help="run only this row, column or cell ('FedAvg, IID') and what it needs; may be given several times",
    )
    parser.add_argument(
        "--dry",
        action="store_true",
        help="try every cell with two rounds, two clients and two batches; keep nothing",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for runs, table and report (default: runs/suites/<name of the suite>)",
    )
    return parser
