"""Configs with missing, unknown, empty and swapped parts."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tests.cli.mutations.base import Mutation, base, changed, entry, paths, without

#: what a config cannot do without
_REQUIRED = ("model", "data", "data.source")
_REPLACEMENTS: dict[str, Any] = {"null": None, "a number": 3, "text": "abc", "a list": [1], "an empty list": []}
_UNKNOWN: dict[str, Any] = {"an empty mapping": {}, "null": None, "1": 1, "text": "a", "a list": []}


def structural() -> Iterator[Mutation]:
    """Yield all of them."""
    for path in paths(base()):
        yield from _changes_of(path)
    yield from _sections()
    yield from _seeds()


def _changes_of(path: str) -> Iterator[Mutation]:
    config, node = base(), entry(base(), path)
    is_mapping = isinstance(node, dict)
    yield Mutation(f"without {path}", without(config, path), path in _REQUIRED or None)
    for label, value in _REPLACEMENTS.items():
        may_be_null = label == "null" and "." in path
        wrong = is_mapping and not may_be_null and not path.endswith("init_args")
        yield Mutation(f"{path} is {label}", changed(config, path, value), wrong or None)
    yield Mutation(f"{path} is an empty mapping", changed(config, path, {}))
    yield Mutation(f"{path} nests itself", changed(config, path, {path.split(".")[-1]: node}))
    for label, value in _UNKNOWN.items() if is_mapping else ():
        yield Mutation(f"{path}.unkown is {label}", changed(config, f"{path}.unkown", value), True)


def _sections() -> Iterator[Mutation]:
    config = base()
    for label, value in _UNKNOWN.items():
        yield Mutation(f"an unknown section is {label}", {**config, "sever": value}, True)
    for one, other in combinations(config, 2):
        swapped = {**config, one: config[other], other: config[one]}
        yield Mutation(f"{one} and {other} are swapped", swapped, True)
    yield Mutation("a section in a section", changed(config, "server.client", {"epochs": 2}), True)
    yield Mutation("the client in the server, empty", changed(config, "server.client", {}), True)
    yield Mutation("a command as a section", {"fit": config})
    for key in ("ckpt_path", "config", "weights_only", "print_config", "subcommand"):
        for value in (1, "nowhere", [], {}, True):
            yield Mutation(f"{key} is {value!r}", {**config, key: value})


def _seeds() -> Iterator[Mutation]:
    for seed in (-1, 2**32, 2**70, 1.5, "abc", [1], float("nan"), None, True, False):
        for key in ("seed_everything", "data.seed"):
            wrong = seed in (-1, 2**70, "abc") or isinstance(seed, list)
            yield Mutation(f"{key} is {seed}", changed(base(), key, seed), wrong or None)
