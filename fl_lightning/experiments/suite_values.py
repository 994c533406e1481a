"""Single values in a suite: parts, numbers, seeds, metrics and what papers report."""

import re
from pathlib import Path
from typing import Any

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.metric_names import is_share
from fl_lightning.experiments.cells import Part, PublishedValue, Spread

_NUMBER = r"(\d+\.?\d*|\.\d+)(e[-+]?\d+)?"
_MEAN_WITH_DEVIATION = re.compile(rf"(?P<mean>[-+]?{_NUMBER}) *(±|\+-|\+/-) *(?P<std>{_NUMBER})")


class SuiteValues:
    """Checks single values of a suite. Every error names the file.

    Args:
        path: the file of the suite.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, problem: str) -> MisconfigurationError:
        return MisconfigurationError(f"{self.path}: {problem}")

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
        if number > 1 and is_share(metric):
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

    def published_value(self, key: str, value: Any, metric: str = "rounds") -> PublishedValue:
        """Read a number, a mean with its deviation, or any other text."""
        if not isinstance(value, str):
            return Spread(self.metric_value(key, value, metric))
        found = _MEAN_WITH_DEVIATION.fullmatch(value.strip())
        if not found:
            return value
        return Spread(self.metric_value(key, float(found["mean"]), metric), float(found["std"]))
