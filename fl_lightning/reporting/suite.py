"""A suite: which runs are compared. Rows are methods, columns are settings, every pair of them is a cell."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.utilities.exceptions import MisconfigurationException

KEYS = ("title", "base", "columns", "rows", "seeds", "metric", "targets", "published")

#: a config file, or the content of one, written into the suite itself
Part = Path | dict[str, Any]
#: as printed in a paper: a number in the unit of the metric, or words such as N/A
Printed = float | str


@dataclass(frozen=True)
class Published:
    """What a paper prints for a cell: values of metrics by name, rounds to a target by target."""

    metrics: Mapping[str, Printed] = field(default_factory=dict)
    rounds: Mapping[float, Printed] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One configuration, run once a seed. Later parts change what earlier ones say, as several ``--config`` do."""

    row: str
    column: str
    parts: tuple[Part, ...]
    published: Published = Published()

    @property
    def name(self) -> str:
        """As it is said to a reader."""
        return f"{self.row}, {self.column}" if self.column else self.row


@dataclass(frozen=True)
class Suite:
    """The content of a suite's file, checked."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    targets: tuple[float, ...]


def load_suite(path: Path, seeds: int | None = None) -> Suite:
    """Reads a suite; ``seeds`` replaces the file's own number of them.

    ```yaml
    title: FedNNNN on the digits
    base: [../demo.yaml]                              # what all cells share
    columns:                                          # optional: the settings
      two classes: []
      IID: [{data: {partition: {class_path: IID, init_args: {num_clients: 20}}}}]
    rows:                                             # the methods
      FedAvg: [../algorithms/fedavg.yaml]
      FedNNNN: [../algorithms/fednnnn.yaml]
    seeds: 3                                          # 1, 2 and 3; or a list of seeds
    metric: val/accuracy                              # or a list; the targets are of the first
    targets: [0.95]
    published:                                        # optional: what the paper prints
      FedAvg: {IID: 0.97}                             # of the first metric, or by name, with rounds to the targets:
      FedNNNN: {IID: {val/accuracy: 0.99, rounds: [12]}}
    ```

    A part of a cell is the path of a config, relative to the suite, or what one would say, written out. The cell's
    parts are those of ``base``, then of its column, then of its row.
    """
    if not path.is_file():
        raise MisconfigurationException(f"{path}: there is no such file")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MisconfigurationException(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    return _Reader(path).suite(content, seeds)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, what: str) -> MisconfigurationException:
        return MisconfigurationException(f"{self.path}: {what}")

    def suite(self, content: Any, seeds: int | None) -> Suite:
        for key in content if isinstance(content, dict) else ():
            if key not in KEYS:
                raise self.wrong(f"{key} is unknown: use {', '.join(KEYS)}")
        if not isinstance(content, dict) or not content.get("rows"):
            raise self.wrong("it has no rows: add rows, for example {FedAvg: [../algorithms/fedavg.yaml]}")
        rows = self.mapping("rows", content["rows"])
        columns = self.mapping("columns", content.get("columns") or {"": []})
        metrics = self.metrics(content.get("metric", "val/accuracy"))
        targets = tuple(
            self.value("targets", target, metrics[0]) for target in self.items("targets", content.get("targets"))
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
            raise self.wrong(f"{key}={value!r} is no mapping: give every one of them a name, {{name: [config.yaml]}}")
        return {str(name): item for name, item in value.items()}

    def items(self, key: str, value: Any) -> list[Any]:
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def parts(self, key: str, value: Any) -> tuple[Part, ...]:
        return tuple(self.part(key, item) for item in self.items(key, value))

    def part(self, key: str, item: Any) -> Part:
        if isinstance(item, dict):
            return item
        if not isinstance(item, str):
            raise self.wrong(f"{key}: {item!r} is neither the path of a config nor a mapping")
        found = (self.path.parent / item).resolve()
        if not found.is_file():
            raise self.wrong(f"{key}: {item}: there is no such file; paths are relative to the suite")
        return found

    def number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"{key}: {value!r} is no number")
        return float(value)

    def value(self, key: str, value: Any, metric: str) -> float:
        """Of a metric: papers print per cent, torchmetrics gives shares."""
        number = self.number(key, value)
        if number > 1 and re.search(r"acc|precision|recall|f1", metric):
            raise self.wrong(f"{key}: {value}, but {metric} is a share: write {number / 100:g}")
        return number

    def seeds(self, value: Any) -> tuple[int, ...]:
        seeds = list(range(1, value + 1)) if isinstance(value, int) and not isinstance(value, bool) else value
        whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
        if not whole or not seeds or len(set(seeds)) < len(seeds):
            raise self.wrong(f"seeds={value!r}: set it to how many, 1 or more, or to a list of different seeds")
        return tuple(seeds)

    def metrics(self, value: Any) -> tuple[str, ...]:
        names = self.items("metric", value)
        if not names or not all(isinstance(name, str) for name in names):
            raise self.wrong(f"metric={value!r}: set it to the name of a logged metric, or a list of names")
        return tuple(names)

    def published(
        self, value: Any, rows: Any, columns: Any, metrics: tuple[str, ...], targets: tuple[float, ...]
    ) -> dict[tuple[str, str], Published]:
        found = {}
        for row, cells in self.mapping("published", value or {}).items():
            if row not in rows:
                raise self.wrong(f"published.{row}: there is no such row, only {', '.join(rows)}")
            by_column = {"": cells} if list(columns) == [""] else self.mapping(f"published.{row}", cells)
            for column, printed in by_column.items():
                if column not in columns:
                    raise self.wrong(f"published.{row}.{column}: there is no such column, only {', '.join(columns)}")
                found[row, column] = self.printed(f"published.{row}.{column}".rstrip("."), printed, metrics, targets)
        return found

    def printed(self, key: str, value: Any, metrics: tuple[str, ...], targets: tuple[float, ...]) -> Published:
        values = dict(value) if isinstance(value, dict) else {metrics[0]: value}
        rounds = self.items(key, values.pop("rounds", None))
        for name in values:
            if name not in metrics:
                raise self.wrong(f"{key}.{name}: it is neither rounds nor a metric of the suite ({', '.join(metrics)})")
        if rounds and len(rounds) != len(targets):
            raise self.wrong(
                f"{key}.rounds has {len(rounds)} values, but there are {len(targets)} targets: give one each"
            )
        for name, one in values.items():
            if not isinstance(one, str):
                self.value(key, one, name)
        for one in rounds:
            if not isinstance(one, str):
                self.number(key, one)
        return Published(values, dict(zip(targets, rounds, strict=False)))
