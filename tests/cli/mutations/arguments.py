"""Configs in which one argument has a wrong or an odd value."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.cli.mutations.base import Mutation
from tests.cli.mutations.right_configs import RightConfig, right_configs
from tests.cli.mutations.wrong_values import NOT_FINITE, NOT_NUMBERS, ODD_NUMBERS

#: arguments of Lightning and torch that accept almost anything
_LOOSE = {
    *product(["trainer"], ["default_root_dir", "max_time", "devices", "strategy", "deterministic"]),
    *product(["trainer"], ["precision", "accelerator", "num_sanity_val_steps"]),
    *product(["client"], ["precision", "log_metrics"]),
}
_MAY_BE_INFINITE = ("target", "patience", "limit_val_batches")


def arguments() -> Iterator[Mutation]:
    """Yield all of them, for every class and every section."""
    for right in right_configs():
        for name, value in right.arguments.items():
            yield from _changes_of(right, name, value)


def _changes_of(right: RightConfig, name: str, value: Any) -> Iterator[Mutation]:
    def mutation(kind: str, other: Any, wrong: bool = False) -> Mutation:
        strict = wrong and (right.slot, name) not in _LOOSE
        return Mutation(f"{right.label}: {name} is {kind}", right.with_argument(name, other), strict or None)

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    for kind, other in NOT_NUMBERS.items():
        fits = any(isinstance(value, type) and isinstance(other, type) for type in (str, list))
        yield mutation(kind, other, wrong=not fits)
    for kind, other in NOT_FINITE.items():
        exempt = name in _MAY_BE_INFINITE or (right.label, kind) == ("data.partition Dirichlet", "inf")
        yield mutation(kind, other, wrong=is_number and not exempt)
    for kind, other in ODD_NUMBERS.items():
        yield mutation(kind, other)
    yield mutation("a list of itself", [value])
