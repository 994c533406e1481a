"""Reading a suite. Its rows are methods, its columns are settings, and every pair of them is a cell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.experiments.cells import Cell, Part, Position, Published, Suite
from fl_lightning.experiments.references import find_circle, needed_cells
from fl_lightning.experiments.suite_values import SuiteValues
from fl_lightning.experiments.yaml_file import quote_key, read_yaml_file

_KEYS = (
    *("title", "base", "columns", "rows", "cells", "skip", "sweep", "x", "seeds", "metric", "targets"),
    *("stop_at_target", "baseline", "source", "published"),
)
_SWEEP_KEYS = ("name", "key", "values", "fixed")


def load_suite(path: Path, seeds: int | None = None) -> Suite:
    """Read a suite from a YAML file.

    ```yaml
    title: FedNNNN on the digits
    base: [demo.yaml]                                 # shared by all cells
    columns:                                          # optional: the settings
      two classes: []
      IID: [{data: {partition: {class_path: IID, init_args: {num_clients: 20}}}}]
    rows:                                             # the methods
      FedAvg: [algorithms/fedavg.yaml]
      FedNNNN: [algorithms/fednnnn.yaml]
      FedMA: [algorithms/fedma.yaml]
    cells:                                            # optional: what only one cell needs, by row and column
      FedNNNN: {IID: [{server: {aggregator: {class_path: FedNNNN, init_args: {beta: 1.0, gamma: 0.7}}}}]}
    skip:                                             # optional: cells that cannot run, with the reason
      FedMA: {IID: torch.fx cannot trace the model}   # or FedMA: reason, for all of its cells
    seeds: 3                                          # seeds 1, 2 and 3; or a list of seeds
    metric: val/accuracy                              # or a list; targets belong to the first metric
    targets: [0.95]
    stop_at_target: true                              # optional: a run ends once it has reached all targets
    baseline: FedAvg                                  # optional: the row that all others are compared with
    source: Table 2                                   # optional: where the paper has the published values
    published:                                        # optional: what the paper reports, by row and column
      FedAvg: {IID: 0.97}                             # a value of the first metric
      FedNNNN: {IID: {val/accuracy: 0.99 ± 0.002, rounds: [12]}}    # or values by metric, and rounds to the targets
      FedMA: {two classes: N/A (94.5 %)}              # or any text
    ```

    The parts of a cell come from ``base``, then from its column, from its row, and from ``cells``. A part is the path
    of a config, relative to the suite, or the content of a config, in which the text ``checkpoint of FedAvg, IID``
    stands for the last checkpoint of that cell with the same seed. A cell runs after the cells whose checkpoints it
    needs.

    Instead of ``columns``, a suite can have a parameter that varies. Its values are the columns, and the report draws
    the results against them, with one line per row:

    ```yaml
    sweep:
      name: η                                         # the label of the axis
      key: model.init_args.optimizer.init_args.lr     # set after the row's parts
      values: [0.02, 0.05, 0.1]
      fixed: [FedAvg]                                 # optional: rows without this parameter, which run once
    ```

    If a value needs more than one key, write the columns yourself, with numbers as names, and label the axis:
    ``x: number of clients``.

    Args:
        path: the file.
        seeds: the number of seeds, overriding those in the file.
    """
    if not path.is_file():
        raise MisconfigurationError(f"{path}: there is no such file")
    return _SuiteReader(path).suite(read_yaml_file(path), seeds)


@dataclass(frozen=True)
class _Column:
    """A column with its parts. The parts of a setting come before the row's parts, the parts of a sweep after them."""

    name: str
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    x: Position | None = None


class _SuiteReader(SuiteValues):
    """Checks the content of a suite, key by key."""

    def suite(self, content: Any, seeds: int | None) -> Suite:
        for key in content if isinstance(content, dict) else ():
            if key not in _KEYS:
                raise self.error(f"{quote_key(key)} is not a key of a suite: use {', '.join(_KEYS)}")
        if not isinstance(content, dict) or not content.get("rows"):
            raise self.error("there are no rows: add rows, for example {FedAvg: [algorithms/fedavg.yaml]}")
        metrics = self.metrics(content.get("metric", "val/accuracy"))
        targets = tuple(
            self.metric_value("targets", target, metrics[0]) for target in self.items(content.get("targets"))
        )
        cells = self.cells(content, self.stopping(content.get("stop_at_target"), metrics[0], targets))
        cells = self.with_reasons(cells, content.get("skip"))
        cells = self.with_published(cells, content.get("published"), content.get("source"), metrics, targets)
        self.check_needs(cells)
        return Suite(
            name=self.path.stem,
            title=str(content.get("title", self.path.stem)),
            cells=tuple(cells),
            seeds=self.seeds(seeds if seeds is not None else content.get("seeds", 1)),
            metrics=metrics,
            targets=targets,
            baseline=self.baseline(content.get("baseline"), cells),
            stops_at_target=bool(content.get("stop_at_target")),
        )

    def cells(self, content: dict[str, Any], last: tuple[Part, ...]) -> list[Cell]:
        """Return all cells, column by column. A fixed row of a sweep has one cell, before all others."""
        rows = {row: self.parts(f"rows.{row}", parts) for row, parts in self.mapping("rows", content["rows"]).items()}
        base = self.parts("base", content.get("base"))
        fixed: list[str] = []
        if "sweep" in content:
            for other in ("columns", "x"):
                if other in content:
                    raise self.error(f"sweep and {other}: the values of a sweep are the columns, so leave {other} out")
            columns, fixed = self.sweep(content["sweep"], rows)
        else:
            columns = self.columns(content.get("columns"), content.get("x"))
        pairs = [(row, _Column("")) for row in fixed]
        pairs += [(row, column) for column in columns for row in rows if row not in fixed]
        cells = [
            Cell(row, column.name, (*base, *column.before, *rows[row], *column.after), x=column.x)
            for row, column in pairs
        ]
        own = {
            (cell.row, cell.column): self.parts(key, value)
            for key, cell, value in self.by_cell("cells", content.get("cells"), cells)
        }
        parts = [(*cell.parts, *own.get((cell.row, cell.column), ()), *last) for cell in cells]
        needs = [
            tuple(dict.fromkeys(name for part in each if isinstance(part, dict) for name in needed_cells(part)))
            for each in parts
        ]
        return [replace(cell, parts=each, needs=needed) for cell, each, needed in zip(cells, parts, needs, strict=True)]

    def columns(self, value: Any, label: Any) -> list[_Column]:
        columns = self.mapping("columns", value or {"": []})
        if label is not None and (not isinstance(label, str) or not value):
            raise self.error(f"x={label!r}: set it to the label of the axis, and columns to mappings named by numbers")
        return [
            _Column(
                name,
                self.parts(f"columns.{name}", parts),
                x=None if label is None else Position(label, self.position(name)),
            )
            for name, parts in columns.items()
        ]

    def position(self, column: str) -> float:
        try:
            return float(column)
        except ValueError:
            raise self.error(
                f"columns.{column} is not a number: with x, the names of all columns must be numbers"
            ) from None

    def sweep(self, value: Any, rows: Mapping[str, Any]) -> tuple[list[_Column], list[str]]:
        sweep = self.mapping("sweep", value)
        for name in sweep:
            if name not in _SWEEP_KEYS:
                raise self.error(f"sweep.{name} is not a key of a sweep: use {', '.join(_SWEEP_KEYS)}")
        key, values = sweep.get("key"), sweep.get("values")
        if not isinstance(key, str) or not all(key.split(".")):
            raise self.error(f"sweep.key={key!r}: set it to the path of a setting, such as client.epochs")
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise self.error(f"sweep.values={values!r}: set it to a list of different numbers")
        fixed = [str(row) for row in self.items(sweep.get("fixed"))]
        for row in fixed:
            if row not in rows:
                raise self.error(f"sweep.fixed: {row}: there is no such row, only {', '.join(rows)}")
        if len(fixed) == len(rows):
            raise self.error("sweep.fixed has all rows: leave out those that have the parameter")
        label = str(sweep.get("name", key.rpartition(".")[2]))
        columns = []
        for one in values:
            part: Any = one
            for name in reversed(key.split(".")):
                part = {name: part}
            columns.append(_Column(str(one), after=(part,), x=Position(label, self.number("sweep.values", one))))
        return columns, fixed

    def by_cell(self, key: str, value: Any, cells: list[Cell]) -> Iterator[tuple[str, Cell, Any]]:
        """Yield the key, cell and value of each entry in a mapping by row and column, or by row without columns."""
        rows = list(dict.fromkeys(cell.row for cell in cells))
        for row, entry in self.mapping(key, value or {}).items():
            if row not in rows:
                raise self.error(f"{key}.{row}: there is no such row, only {', '.join(rows)}")
            columns = {cell.column: cell for cell in cells if cell.row == row}
            by_column = {"": entry} if list(columns) == [""] else self.mapping(f"{key}.{row}", entry)
            for column, item in by_column.items():
                if column not in columns:
                    raise self.error(f"{key}.{row}.{column}: there is no such column, only {', '.join(columns)}")
                yield f"{key}.{row}.{column}".rstrip("."), columns[column], item

    def with_reasons(self, cells: list[Cell], value: Any) -> list[Cell]:
        """Mark the cells that cannot run. A text instead of a mapping of columns marks a whole row."""
        columns = {row: [cell.column for cell in cells if cell.row == row] for row in {cell.row for cell in cells}}
        value = {
            row: dict.fromkeys(columns[row], entry)
            if isinstance(entry, str) and columns.get(row, [""]) != [""]
            else entry
            for row, entry in self.mapping("skip", value or {}).items()
        }
        found = {}
        for key, cell, reason in self.by_cell("skip", value, cells):
            if not isinstance(reason, str) or not reason.strip():
                raise self.error(f"{key}={reason!r}: set it to the reason why this cell cannot run")
            found[cell.row, cell.column] = reason.strip()
        return [replace(cell, skip=found.get((cell.row, cell.column))) for cell in cells]

    def stopping(self, value: Any, metric: str, targets: tuple[float, ...]) -> tuple[Part, ...]:
        """Return the part that ends a run at its hardest target."""
        if value in (None, False):
            return ()
        if value is not True:
            raise self.error(f"stop_at_target={value!r}: set it to true or false")
        if not targets:
            raise self.error("stop_at_target is true, but there are no targets: add targets, for example [0.95]")
        hardest = min(targets) if smaller_is_better(metric) else max(targets)
        callback = {"class_path": "StopAtTarget", "init_args": {"monitor": metric, "target": hardest}}
        return ({"trainer": {"callbacks+": [callback]}},)

    def check_needs(self, cells: list[Cell]) -> None:
        names = {cell.name: cell for cell in cells}
        for cell in cells:
            for name in cell.needs:
                if name not in names:
                    raise self.error(
                        f"{cell.name} needs the checkpoint of {name}: there is no such cell, only {'; '.join(names)}"
                    )
                if names[name].skip and not cell.skip:
                    raise self.error(f"{cell.name} needs the checkpoint of {name}, which is skipped: skip both")
        circle = find_circle({cell.name: cell.needs for cell in cells})
        if circle:
            raise self.error(f"the cells need each other's checkpoints in a circle: {' needs '.join(circle)}")

    def baseline(self, value: Any, cells: list[Cell]) -> str | None:
        rows = list(dict.fromkeys(cell.row for cell in cells))
        if value is not None and str(value) not in rows:
            raise self.error(f"baseline={value}: there is no such row, only {', '.join(rows)}")
        return None if value is None else str(value)

    def with_published(
        self, cells: list[Cell], value: Any, source: Any, metrics: tuple[str, ...], targets: tuple[float, ...]
    ) -> list[Cell]:
        if source is not None and not isinstance(source, str):
            raise self.error(f"source={source!r}: set it to where the paper has the published values, such as Table 2")
        found = {
            (cell.row, cell.column): self.published(key, item, source or "", metrics, targets)
            for key, cell, item in self.by_cell("published", value, cells)
        }
        return [replace(cell, published=found.get((cell.row, cell.column), Published())) for cell in cells]

    def published(
        self, key: str, value: Any, source: str, metrics: tuple[str, ...], targets: tuple[float, ...]
    ) -> Published:
        values = dict(value) if isinstance(value, dict) else {metrics[0]: value}
        rounds = self.items(values.pop("rounds", None))
        source = str(values.pop("source", source))
        for name in values:
            if name not in metrics:
                raise self.error(
                    f"{key}.{name} is neither rounds nor source nor a metric of the suite ({', '.join(metrics)})"
                )
        if rounds and len(rounds) != len(targets):
            raise self.error(
                f"{key}.rounds has {len(rounds)} values, but there are {len(targets)} targets: give one per target"
            )
        return Published(
            {name: self.published_value(key, one, name) for name, one in values.items()},
            {target: self.published_value(key, one) for target, one in zip(targets, rounds, strict=False)},
            source,
        )
