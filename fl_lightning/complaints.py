"""What the parser says of a mistake, in one line that names the key, the value and what would be right."""

import importlib
import inspect
import re


def explain(message: str) -> str:
    """Shortens a message of jsonargparse; others are only put on one line."""
    message = _one_line(message)
    if not message.startswith("Parser key"):
        return message
    base = re.search(r"Subtypes: \[<class '([\w.]+)'>", message)
    key, problem = _innermost(message)
    unknown = re.match(r"Expected a dot import path string: (\S+)", problem)
    if unknown:
        known = _short_names(base.group(1)) if base and "Parser key" not in message[1:] else ""
        problem = (
            f"{unknown.group(1)} is no class that is known here: use {known}a full class path, package.module.Class"
        )
    problem = re.sub(r"Expected a typing\.Literal\[(.+?)\]\. Got value: (.*)", r"\2 is not one of \1", problem)
    problem = re.sub(r"Expected a <class '(\w+)'>\. Got value: (.*)", r"\2 is not of type \1", problem)
    return f"{key}: {problem}"


def _innermost(message: str) -> tuple[str, str]:
    """The full key of the value at fault, and what is wrong with it."""
    keys: list[str] = []
    while match := re.match(r'(?:Parser key )?"?([\w.]+)"?: (.*)', message):
        keys.append(match.group(1))
        message = match.group(2)
        if " Errors: - " in message:
            # a value that may be one of several types: the first type is the one that was meant
            message = message.split(" Errors: - ", 1)[1].split(" - Expected a <class 'NoneType'>")[0]
    return ".".join(keys), message


def _short_names(class_path: str) -> str:
    module, _, name = class_path.rpartition(".")
    found = _concrete(getattr(importlib.import_module(module), name))
    return ", ".join(sorted(found)) + ", or " if found else ""


def _concrete(base: type) -> set[str]:
    names: set[str] = set()
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        if not inspect.isabstract(subclass) and not subclass.__name__.startswith("_"):
            names.add(subclass.__name__)
        names |= _concrete(subclass)
    return names


def _one_line(message: str) -> str:
    return re.sub(r"\s*\n\s*", " ", message.strip())
