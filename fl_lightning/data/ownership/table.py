"""A table for the terminal that shows which client owns what."""

import textwrap

import numpy as np

from fl_lightning.data.ownership.counts import Ownership

#: With more clients than this, the table shows only the first, the last and quantiles.
_MAX_ROWS = 30
_FIRST, _LAST = 10, 5
_QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}


def partition_table(ownership: Ownership, width: int) -> str:
    """Return a table with one row per client and one column per class, as far as ``width`` characters allow."""
    counts = ownership.counts
    numbers = ownership.sizes[:, None]
    header = ["client", "samples"]
    if counts is not None:
        numbers = np.column_stack([ownership.sizes, np.count_nonzero(counts, axis=1), counts])
        header += ["classes", *(str(label) for label in range(counts.shape[1]))]

    names = [str(client) for client in ownership.clients]
    rows = [[name, *_cells(row)] for name, row in zip(names, numbers, strict=True)] if len(names) <= _MAX_ROWS else []
    if len(names) > _MAX_ROWS:
        rows += [[names[k], *_cells(numbers[k])] for k in range(_FIRST)]
        rows += [["..."] + [""] * (len(header) - 1)]
        rows += [[names[k], *_cells(numbers[k])] for k in range(-_LAST, 0)]
        rows += [[""] * len(header)]
        rows += [[name, *_cells(np.quantile(numbers, q, axis=0, method="nearest"))] for name, q in _QUANTILES.items()]
    total = [ownership.sizes.sum()]
    if counts is not None:
        total += [np.count_nonzero(counts.sum(axis=0)), *counts.sum(axis=0)]
    rows.append(["total", *_cells(np.array(total))])

    lines, left_out = _aligned([header, *rows], width)
    owned, shared = f"{ownership.num_owned:,} of {ownership.num_samples:,}", f"{ownership.num_shared:,}"
    facts = [f"{owned} samples have an owner, {shared} more than one"]
    if left_out:
        facts.append(f"{left_out} classes do not fit in {width} columns and are not shown")
    head = [*textwrap.wrap(ownership.source, width), *textwrap.wrap(ownership.partition, width), ""]
    return "\n".join([*head, *lines, "", *(line for fact in facts for line in textwrap.wrap(fact, width))])


def _cells(row: np.ndarray) -> list[str]:
    """Format a row of numbers: samples, classes, and samples per class. Zeros become dots, except in the first cell."""
    return [str(number) if number or place == 0 else "." for place, number in enumerate(row.tolist())]


def _aligned(rows: list[list[str]], width: int) -> tuple[list[str], int]:
    """Return lines with aligned columns, and the number of columns that do not fit."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ends = np.cumsum([widths[0], *(2 + width for width in widths[1:])])
    fit = max(int(np.searchsorted(ends, width, side="right")), 2)
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row[:fit], widths[:fit], strict=True)) for row in rows]
    return [line.rstrip() for line in lines], len(widths) - fit
