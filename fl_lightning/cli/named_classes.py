"""The user's classes that a command line names, imported before the package decides which Lightning to use."""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml


def import_named_classes(args: Sequence[str]) -> None:
    """Import the modules of the classes that the arguments name, the model's first.

    They import the Lightning that they are made with, and this package then uses the same one. Modules in the current
    folder are found. A module that cannot be imported is skipped, because the parser reports it later.

    Args:
        args: the command line, without the name of the program.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script does not have it there
    named = sorted(_class_paths(list(args)), key=lambda item: not item[0].startswith("model"))
    for _, class_path in named:
        module = class_path.rpartition(".")[0]
        if module and module.partition(".")[0] != "fl_lightning":
            try:
                importlib.import_module(module)
            except Exception:
                continue


def _class_paths(args: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys and class paths in the config files and options."""
    for position, argument in enumerate(args):
        name, _, value = argument.partition("=")
        value = value or next(iter(args[position + 1 :]), "")
        if name in ("--config", "-c"):
            yield from _in_config(_load(Path(value)), "", set())
        elif name.startswith("--") and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", value):
            yield name.lstrip("-"), value


def _load(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None  # the parser reports it


def _in_config(node: Any, key: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield what a config names. Aliases are visited once, because a file may nest them without end."""
    if not isinstance(node, dict | list) or id(node) in seen:
        return
    seen.add(id(node))
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        if name == "class_path" and isinstance(value, str):
            yield key, value
        else:
            yield from _in_config(value, f"{key}.{name}".lstrip("."), seen)
