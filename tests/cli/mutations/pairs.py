"""Configs with two random changes each, which may cancel out."""

import random
from collections.abc import Iterator
from typing import Any

from tests.cli.mutations.base import Mutation, base, changed, paths
from tests.cli.mutations.wrong_values import ALIEN_CLASSES, NOT_FINITE, NOT_NUMBERS, ODD_NUMBERS, SLOTS

#: with these, a run would take days
_ENDLESS = (-1, 10**30, 2**63)


def pairs(count: int = 1000, seed: int = 0) -> Iterator[Mutation]:
    """Yield as many of them as asked for."""
    generator = random.Random(seed)
    everything = list(paths(base()))
    sources = (NOT_NUMBERS, NOT_FINITE, ODD_NUMBERS, SLOTS, ALIEN_CLASSES)
    values: list[Any] = [value for source in sources for value in source.values()]
    for number in range(count):
        config, done = base(), []
        for _ in range(2):
            path, value = generator.choice(everything), generator.choice(values)
            if path.endswith("epochs") and value in _ENDLESS:
                continue
            try:
                config = changed(config, path, value)
            except (AttributeError, TypeError, KeyError):  # the first change took away what the second would change
                continue
            done.append(f"{path}={str(value)[:40]}")
        yield Mutation(f"pair {number}: {', '.join(done)}", config)
