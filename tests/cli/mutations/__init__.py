"""Generates wrong and odd configs from right ones, and runs them."""

from collections.abc import Callable, Iterator

from tests.cli.mutations.arguments import arguments
from tests.cli.mutations.base import Mutation
from tests.cli.mutations.classes import classes
from tests.cli.mutations.files import files
from tests.cli.mutations.pairs import pairs
from tests.cli.mutations.right_configs import valid
from tests.cli.mutations.settings import settings
from tests.cli.mutations.structure import structural

#: what generates each kind of mutation
KINDS: dict[str, Callable[[], Iterator[Mutation]]] = {
    "valid": valid,
    "structural": structural,
    "arguments": arguments,
    "classes": classes,
    "settings": settings,
    "files": files,
    "pairs": pairs,
}


def every_mutation() -> list[Mutation]:
    """Return all mutations, always in the same order."""
    return [mutation for kind in KINDS.values() for mutation in kind()]


def spread(kind: str, count: int) -> list[Mutation]:
    """Return some mutations of a kind, evenly spaced; all of them if there are no more."""
    mutations = list(KINDS[kind]())
    count = min(count, len(mutations))
    return [mutations[number * len(mutations) // count] for number in range(count)]
