"""The report as one self-contained HTML page: no network, no scripts, and light or dark as the reader prefers."""

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.experiments.results import CellResult
from fl_lightning.experiments.table import as_cells
from fl_lightning.reports.curves import Curve, differences
from fl_lightning.reports.figures import DASHES, PALETTE, dash_of
from fl_lightning.reports.parameter import parameter_section
from fl_lightning.reports.sections import Section, Sections


def write_page(
    file: Path,
    title: str,
    curves: Sequence[Curve],
    results: Sequence[CellResult],
    metrics: Sequence[str],
    targets: Sequence[float],
    notes: Sequence[str] = (),
    baseline: str | None = None,
) -> None:
    """Write the report on a set of curves.

    Args:
        file: the page to write.
        title: the title of the page.
        curves: the runs to draw.
        results: the rows of the table, one per curve.
        metrics: the metrics to draw over the rounds and to compare with the baseline.
        targets: values of the first metric.
        notes: further notes for the reader. Unfinished runs are always noted.
        baseline: the name of the baseline; by default, FedAvg.
    """
    parameter = parameter_section(results, metrics, targets)
    unfinished = [note for curve in curves for note in _unfinished(curve)]
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="note">{escape(note)}</p>' for note in (*notes, *unfinished)),
        _table(as_cells(results)),
        '<div class="sections">',
        *([_section(parameter)] if parameter else []),
        *(_section(section) for section in Sections(curves, metrics, targets, baseline).all()),
        "</div>",
        _pictures(curves),
        _configs(curves),
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n</head>\n"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(head + "<body>\n<main>\n" + "\n".join(filter(None, body)) + "\n</main>\n</body>\n</html>\n")


def _unfinished(curve: Curve) -> list[str]:
    return [
        f"{curve.full_name}{'' if run.seed is None else f', seed {run.seed}'} is unfinished: {run.rounds} of"
        f" {run.max_rounds or '?'} rounds. It is drawn, but the table leaves it out."
        for run in curve.runs
        if not run.finished
    ]


def _table(cells: Sequence[Sequence[str]]) -> str:
    head, *rows = cells
    header = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{header}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _section(section: Section) -> str:
    lone = len(section.figures) == 1 and not section.folded
    parts = [f"<section{' class=lone' if lone else ''}><h2>{escape(section.title)}</h2>"]
    if section.note:
        parts.append(f"<p>{escape(section.note)}</p>")
    if section.legend:
        parts.append('<p class="legend">' + "".join(_legend_entry(*entry) for entry in section.legend) + "</p>")
    parts.append(_grid(section.figures))
    if section.folded:
        parts.append(f"<details><summary>Layer by layer</summary>{_grid(section.folded)}</details>")
    return "\n".join([*parts, "</section>"])


def _grid(figures: Sequence[str]) -> str:
    return '<div class="grid">' + "".join(figures) + "</div>" if figures else ""


def _legend_entry(colour: int, name: str) -> str:
    dash = DASHES[dash_of(colour)]
    dashes = "" if dash == "-" else f' stroke-dasharray="{" ".join(str(3 * length) for length in dash[1])}"'
    number = colour % len(PALETTE["light"])
    line = f'<path d="M0 4H28" stroke="var(--c{number})" stroke-width="3"{dashes}/>'
    return f'<span><svg viewBox="0 0 28 8" aria-hidden="true">{line}</svg>{escape(name)}</span>'


def _pictures(curves: Sequence[Curve]) -> str:
    """Show which client owns which data, with one picture for all curves that share it."""
    owners: dict[bytes, list[str]] = {}
    for curve in curves:
        picture = curve.runs[0].picture
        if picture is not None:
            owners.setdefault(picture, []).append(curve.full_name)
    if not owners:
        return ""
    figures = []
    for picture, names in owners.items():
        caption = "all runs" if len(names) == len(curves) else "; ".join(names)
        data = base64.b64encode(picture).decode()
        image = f'<img alt="which client owns how many samples of which class" src="data:image/png;base64,{data}">'
        figures.append(f'<figure class="picture">{image}<figcaption>{escape(caption)}</figcaption></figure>')
    return "<section><h2>Data per client</h2>\n" + "\n".join(figures) + "</section>"


def _configs(curves: Sequence[Curve]) -> str:
    known = [curve for curve in curves if curve.runs[0].config]
    if not known:
        return ""
    parts = ["<section><h2>Configurations</h2>"]
    different = differences(known)
    if different:
        head = ["setting", *(curve.full_name for curve in known)]
        parts.append(
            _table(
                [
                    head,
                    *(
                        [key.replace(".init_args", ""), *map(_format_value, values)]
                        for key, values in different.items()
                    ),
                ]
            )
        )
    for curve in known:
        text = yaml.safe_dump(curve.runs[0].config, sort_keys=False, allow_unicode=True)
        seeds = ", ".join(str(run.seed) for run in curve.runs)
        summary = f"{curve.full_name}: seed{'s' if len(curve.runs) > 1 else ''} {seeds}, {curve.runs[0].folder}"
        parts.append(f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>")
    return "\n".join([*parts, "</section>"])


def _format_value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value.rpartition(".")[2] if value.startswith(("fl_lightning.", "torch.")) else value
    return json.dumps(value, default=str)


def _style() -> str:
    def variables(theme: str, ink: str, faint: str, line: str, paper: str, card: str) -> str:
        colours = "".join(f"--c{number}:{colour};" for number, colour in enumerate(PALETTE[theme]))
        return f":root{{{colours}--ink:{ink};--faint:{faint};--line:{line};--paper:{paper};--card:{card}}}"

    light = variables("light", "#1d2329", "#8b949e", "#d5dade", "#ffffff", "#f4f6f8")
    dark = variables("dark", "#e6e9ed", "#7d8790", "#343b42", "#14171a", "#1e2327")
    return f"""
{light}
@media (prefers-color-scheme: dark) {{ {dark} }}
* {{ box-sizing: border-box }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }}
main {{ max-width: 1280px; margin: 0 auto; padding: 1rem }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem }}
h2 {{ font-size: 1.2rem; margin: 2.2rem 0 .3rem }}
p {{ margin: .3rem 0; max-width: 75ch }}
.note {{ border-left: 4px solid var(--c1); padding-left: .7rem; overflow-wrap: anywhere }}
.wide {{ overflow-x: auto; margin: 1rem 0 }}
table {{ border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line) }}
td {{ white-space: nowrap }}
th {{ font-weight: 600 }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; max-width: none }}
.legend span {{ display: inline-flex; align-items: center; gap: .4rem }}
.legend svg {{ width: 28px; height: 8px }}
.sections {{ display: flex; flex-wrap: wrap; column-gap: 1rem }}
section {{ flex: 1 1 100%; min-width: 0 }}
.lone {{ flex: 0 1 440px }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: .5rem 1rem }}
figure {{ margin: 0; max-width: 480px }}
figure svg {{ width: 100%; height: auto; display: block }}
figure svg text {{ font-family: system-ui, sans-serif !important }}
.picture {{ max-width: 800px; margin: .8rem 0 }}
.picture img {{ max-width: 100%; border-radius: 6px; background: #fff }}
figcaption {{ font-size: .9rem; margin: .5rem 0 .2rem; overflow-wrap: anywhere }}
details {{ margin: .6rem 0 }}
summary {{ cursor: pointer; overflow-wrap: anywhere }}
pre {{ background: var(--card); padding: .8rem; border-radius: 6px; overflow-x: auto; font-size: .85rem }}
"""
