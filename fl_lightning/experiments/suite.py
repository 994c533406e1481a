"""A suite: the runs to compare. Its rows are methods, its columns are settings, and every pair of them is a cell."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.core.errors import MisconfigurationError

#: a config file, or the content of one, written out in the suite
Part = Path | dict[str, Any]
#: a number as a paper reports it, in the unit of the metric, or text such as N/A
PublishedValue = float | str

_KEYS = ("title", "base", "columns", "rows", "seeds", "metric", "targets", "published")


@dataclass(frozen=True)
class Published:
    """What a paper reports for a cell: values by metric, and rounds by target."""

    metrics: Mapping[str, PublishedValue] = field(default_factory=dict)
    rounds: Mapping[float, PublishedValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One configuration, which is run once per seed. Later parts override earlier ones, like several ``--config``."""

    row: str
    column: str
    parts: tuple[Part, ...]
    published: Published = Published()

    @property
    def name(self) -> str:
        """The method and its setting."""
        return f"{self.row}, {self.column}" if self.column else self.row


@dataclass(frozen=True)
class Suite:
    """The checked content of a suite's file."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    targets: tuple[float, ...]


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
      FedMA: {IID: matches chains of layers only}     # or FedMA: reason, for all of its cells
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
    of a config, relative to the suite, or the content of a config. In such a content, the text ``checkpoint of FedAvg,
    IID`` stands for the last checkpoint of that cell with the same seed; the cell then runs after the one that it needs.

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
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MisconfigurationError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return _SuiteReader(path).suite(content, seeds)


class _SuiteReader:
    """Checks the content of a suite, key by key. Every error names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, problem: str) -> MisconfigurationError:
        return MisconfigurationError(f"{self.path}: {problem}")

    def suite(self, content: Any, seeds: int | None) -> Suite:
        for key in content if isinstance(content, dict) else ():
            if key not in _KEYS:
                raise self.error(f"{key} is not a key of a suite: use {', '.join(_KEYS)}")
        if not isinstance(content, dict) or not content.get("rows"):
            raise self.error("there are no rows: add rows, for example {FedAvg: [algorithms/fedavg.yaml]}")
        rows = self.mapping("rows", content["rows"])
        columns = self.mapping("columns", content.get("columns") or {"": []})
        metrics = self.metrics(content.get("metric", "val/accuracy"))
        targets = tuple(
            self.metric_value("targets", target, metrics[0]) for target in self.items(content.get("targets"))
        )
        published = self.published(content.get("published"), rows, columns, metrics, targets)
        base = self.parts("base", content.get("base"))
        cells = tuple(
            Cell(
                row,
                column,
                base + self.parts(f"columns.{column}", settings) + self.parts(f"rows.{row}", methods),
                published.get((row, column), Published()),
            )
            for column, settings in columns.items()
            for row, methods in rows.items()
        )
        return Suite(
            name=self.path.stem,
            title=str(content.get("title", self.path.stem)),
            cells=cells,
            seeds=self.seeds(seeds if seeds is not None else content.get("seeds", 1)),
            metrics=metrics,
            targets=targets,
        )

    def mapping(self, key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(f"{key}={value!r} is not a mapping: give each entry a name, {{name: [config.yaml]}}")
        return {str(name): item for name, item in value.items()}

    def items(self, value: Any) -> list[Any]:
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def parts(self, key: str, value: Any) -> tuple[Part, ...]:
        return tuple(self.part(key, item) for item in self.items(value))

    def part(self, key: str, item: Any) -> Part:
        if isinstance(item, dict):
            return item
        if not isinstance(item, str):
            raise self.error(f"{key}: {item!r} is neither the path of a config nor a mapping")
        found = (self.path.parent / item).resolve()
        if not found.is_file():
            raise self.error(f"{key}: {item}: there is no such file; paths are relative to the suite")
        return found

    def number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key}: {value!r} is not a number")
        return float(value)

    def metric_value(self, key: str, value: Any, metric: str) -> float:
        """Check a value of a metric. Papers report percentages, but torchmetrics computes fractions."""
        number = self.number(key, value)
        if number > 1 and re.search(r"acc|precision|recall|f1", metric):
            raise self.error(f"{key}: {value}, but {metric} is a fraction of 1: write {number / 100:g}")
        return number

    def seeds(self, value: Any) -> tuple[int, ...]:
        seeds = list(range(1, value + 1)) if isinstance(value, int) and not isinstance(value, bool) else value
        whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
        if not whole or not seeds or len(set(seeds)) < len(seeds):
            raise self.error(
                f"seeds={value!r}: set it to a number of seeds, 1 or more, or to a list of different seeds"
            )
        return tuple(seeds)

    def metrics(self, value: Any) -> tuple[str, ...]:
        names = self.items(value)
        if not names or not all(isinstance(name, str) for name in names):
            raise self.error(f"metric={value!r}: set it to the name of a logged metric, or to a list of names")
        return tuple(names)

    def published(
        self, value: Any, rows: Any, columns: Any, metrics: tuple[str, ...], targets: tuple[float, ...]
    ) -> dict[tuple[str, str], Published]:
        found = {}
        for row, cells in self.mapping("published", value or {}).items():
            if row not in rows:
                raise self.error(f"published.{row}: there is no such row, only {', '.join(rows)}")
            by_column = {"": cells} if list(columns) == [""] else self.mapping(f"published.{row}", cells)
            for column, cell in by_column.items():
                if column not in columns:
                    raise self.error(f"published.{row}.{column}: there is no such column, only {', '.join(columns)}")
                key = f"published.{row}.{column}".rstrip(".")
                found[row, column] = self.published_cell(key, cell, metrics, targets)
        return found

    def published_cell(self, key: str, value: Any, metrics: tuple[str, ...], targets: tuple[float, ...]) -> Published:
        values = dict(value) if isinstance(value, dict) else {metrics[0]: value}
        rounds = self.items(values.pop("rounds", None))
        for name in values:
            if name not in metrics:
                raise self.error(f"{key}.{name} is neither rounds nor a metric of the suite ({', '.join(metrics)})")
        if rounds and len(rounds) != len(targets):
            raise self.error(
                f"{key}.rounds has {len(rounds)} values, but there are {len(targets)} targets: give one per target"
            )
        for name, one in values.items():
            if not isinstance(one, str):
                self.metric_value(key, one, name)
        for one in rounds:
            if not isinstance(one, str):
                self.number(key, one)
        return Published(values, dict(zip(targets, rounds, strict=False)))
