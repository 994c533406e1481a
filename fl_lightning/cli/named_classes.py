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
    """Import the modules of the classes that the arguments name until one of them imports a Lightning.

    This package then uses the same one. Modules in the current folder are found. A module that cannot be imported is
    skipped, because the parser reports it later.

    Args:
        args: the command line, without the name of the program.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script does not have it there
    for module in named_modules(args):
        if "pytorch_lightning" in sys.modules or "lightning" in sys.modules:
            return
        try:
            importlib.import_module(module)
        except Exception:
            continue


def named_modules(args: Sequence[str]) -> list[str]:
    """Return the modules of the classes in the options and in the files that they name, most important first.

    The model's own class comes first, then its parts, then all others. Among several models, the last comes first,
    because later options override earlier ones.
    """
    last_first = list(_class_paths(args))[::-1]
    named = sorted(last_first, key=lambda item: _distance_to_model(item[0]))
    modules = [class_path.rpartition(".")[0] for _, class_path in named]
    return list(dict.fromkeys(name for name in modules if name and name.partition(".")[0] != "fl_lightning"))


def _distance_to_model(key: str) -> int:
    parts = key.removesuffix(".class_path").split(".")
    return len(parts) - parts.index("model") if "model" in parts else sys.maxsize


def _class_paths(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield keys and class paths. An argument without a dash belongs to the option before it."""
    reader = _Reader()
    option = ""
    for argument in args:
        value = argument
        if argument.startswith("-"):
            option, _, value = argument.lstrip("-").partition("=")
        if option in ("config", "c") and not value.lstrip().startswith("{"):
            yield from reader.in_file(Path(value), option)
        else:
            yield from reader.in_value(_parse(value), option, Path(), set())


class _Reader:
    """Finds class paths. It reads every file once, because files may name each other."""

    def __init__(self) -> None:
        self._files: set[Path] = set()

    def in_file(self, file: Path, key: str) -> Iterator[tuple[str, str]]:
        """Yield the keys and class paths in a config or a suite."""
        file = file.expanduser()
        if file in self._files or not file.is_file():
            return
        self._files.add(file)
        try:
            content = _parse(file.read_text())
        except (OSError, ValueError):
            return  # the parser reports it
        yield from self.in_value(content, key, file.parent, set())

    def in_value(self, value: Any, key: str, folder: Path, seen: set[int]) -> Iterator[tuple[str, str]]:
        """Yield the keys and class paths in a value.

        Args:
            value: a part of a config.
            key: its key.
            folder: files in the value are relative to it.
            seen: parts that were visited before and are skipped, because YAML aliases may nest a part in itself.
        """
        if isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self.in_value(item, f"{key}.{name}", folder, seen)
        elif isinstance(value, str) and value.endswith((".yaml", ".yml", ".json")):
            yield from self.in_file(folder / value, key)
        elif isinstance(value, str) and (key.endswith(".class_path") or _looks_like_class(value)):
            yield key, value


def _looks_like_class(value: str) -> bool:
    """Return whether a string is a dotted path to a capitalised name, and not for example a file, ``figure.png``."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*\.[A-Z]\w*", value) is not None


def _parse(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return text
