"""What a suite consists of: cells, each of which is one configuration, and what the paper reports for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: a config file, or the content of one, written out in the suite
Part = Path | dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) over seeds. A single seed has no deviation."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one or more values."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


#: a number as a paper reports it, in the unit of the metric, or text such as N/A
PublishedValue = Spread | str


@dataclass(frozen=True)
class Published:
    """What a paper reports for a cell: values by metric, rounds by target, and where they are in the paper."""

    metrics: Mapping[str, PublishedValue] = field(default_factory=dict)
    rounds: Mapping[float, PublishedValue] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Position:
    """The place of a cell on the axis of a parameter."""

    label: str
    value: float


@dataclass(frozen=True)
class Cell:
    """One configuration, which is run once per seed.

    Args:
        row: the method.
        column: the setting; empty if there is only one.
        parts: what the configuration is made of. Later parts override earlier ones, like several ``--config``.
        published: what the paper reports.
        skip: why the cell cannot run; None if it can.
        needs: names of the cells whose checkpoints the parts refer to.
        x: the value of the parameter that varies between the columns; None if the columns are settings.
    """

    row: str
    column: str
    parts: tuple[Part, ...]
    published: Published = Published()
    skip: str | None = None
    needs: tuple[str, ...] = ()
    x: Position | None = None

    @property
    def name(self) -> str:
        """The method and its setting."""
        return f"{self.row}, {self.column}" if self.column else self.row

    @property
    def setting(self) -> str:
        """The column, with the name of the parameter if the columns are values of one."""
        return f"{self.x.label} = {self.column}" if self.x else self.column


@dataclass(frozen=True)
class Suite:
    """The checked content of a suite's file."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    targets: tuple[float, ...]
    baseline: str | None = None
    stops_at_target: bool = False
