"""What a mutation is, and how one entry of a config is changed."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tests.runs import REPOSITORY

#: a short run, to be laid over the demo
_SHORT = {
    "data": {"selection": {"class_path": "RandomClients", "init_args": {"count": 2}}},
    "client": {"epochs": 1, "limit_train_batches": 1},
    "trainer": {
        **{"max_epochs": 1, "limit_val_batches": 1, "accelerator": "cpu", "devices": 1},
        **{"enable_progress_bar": False, "logger": False, "enable_checkpointing": False},
    },
}


@dataclass(frozen=True)
class Mutation:
    """A config and what must happen to it.

    Args:
        name: what was changed.
        content: the config, or what the file holds if it is not a config.
        wrong: whether it must be refused; None if it may be refused or train.
    """

    name: str
    content: dict[str, Any] | str | bytes
    wrong: bool | None = None

    def file(self) -> bytes:
        """Return the content of the file."""
        if isinstance(self.content, bytes):
            return self.content
        return (self.content if isinstance(self.content, str) else as_yaml(self.content)).encode()


def as_yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(config, sort_keys=False)


@cache
def base() -> dict[str, Any]:
    """Return the demo, shortened to one round of two clients. It is never changed in place."""
    config = yaml.safe_load((REPOSITORY / "configs" / "demo.yaml").read_text())
    return config | {section: {**config[section], **values} for section, values in _SHORT.items()}


def entry(config: Any, path: str) -> Any:
    """Return the part of a config with this path; ``client.callbacks.0`` is the first entry of a list."""
    for name in path.split("."):
        config = config[int(name)] if isinstance(config, list) else config[name]
    return config


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a config in which one entry is different; ``client.callbacks.0`` becomes the only entry of a list."""
    if path.endswith(".0"):
        path, value = path.removesuffix(".0"), [value]
    config = copy.deepcopy(config)
    *parents, last = path.split(".")
    node: Any = config
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = copy.deepcopy(value)
    return config


def without(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a config that lacks one entry."""
    config = copy.deepcopy(config)
    parents, _, last = path.rpartition(".")
    del (entry(config, parents) if parents else config)[last]
    return config


def paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all entries of a config."""
    for name, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{name}"
        yield from paths(value, f"{prefix}{name}.")
