"""What a configuration may name: classes that fit their place. It cannot call functions with its own arguments."""

import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from fl_lightning.core.errors import MisconfigurationError

#: Python's own modules, such as subprocess
_STANDARD_LIBRARY = sys.stdlib_module_names


def check_named_classes(key: str, value: Any, hint: Any) -> None:
    """Reject functions, classes of the standard library and classes that do not fit, before anything is called.

    The parser checks most slots itself. But where a class expects a callable, such as one that makes an optimiser, it
    would accept any function, with arguments from the configuration. Without a type, it would accept anything.

    Args:
        key: where the value is in the configuration.
        value: a part of the parsed configuration.
        hint: the type that is expected there.
    """
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_named_classes(f"{key}.{number}", item, hint)
    elif _is_class_spec(value):
        named = _import(str(value["class_path"]))
        _check_fit(key, str(value["class_path"]), named, _expected(hint))
        check_arguments(f"{key}.init_args", value.get("init_args"), named)
    elif isinstance(value, dict):
        for name, item in value.items():
            check_named_classes(f"{key}.{name}", item, hint)
    elif inspect.isroutine(value):
        returned = [kind for kind in _expected(hint) if isinstance(kind, _Makes) and kind.classes]
        if returned:
            raise MisconfigurationError(
                f"{key}={value.__module__}.{value.__qualname__} is a function: name a subclass of {returned[0]}"
            )


def check_arguments(key: str, arguments: Any, named: Any) -> None:
    """Check the arguments of a class, or of a function that returns an object of a class."""
    if not hasattr(arguments, "items"):
        return
    hints = _hints(named)
    for name, value in vars(arguments).items() if not isinstance(arguments, dict) else arguments.items():
        check_named_classes(f"{key}.{name}", value, hints.get(name, Any))


class _Makes:
    """A slot for a callable that returns objects of these classes, or of any class if there are none."""

    def __init__(self, classes: Sequence[type]) -> None:
        self.classes = tuple(classes)

    def __str__(self) -> str:
        return " or ".join(f"{cls.__module__.partition('.')[0]}'s {cls.__name__}" for cls in self.classes)


def _check_fit(key: str, path: str, named: Any, expected: Sequence[Any]) -> None:
    returned = named if isinstance(named, type) else _returned_class(named)
    if isinstance(returned, type) and any(_is_class(kind) and issubclass(returned, kind) for kind in expected):
        return
    if not isinstance(named, type):
        raise MisconfigurationError(f"{key}: {path} is a function, but a config may only call classes: name a class")
    makers = [kind for kind in expected if isinstance(kind, _Makes) and kind.classes]
    if makers and len(makers) == len(expected):
        if not issubclass(named, makers[0].classes):
            raise MisconfigurationError(f"{key}: {path} is not a subclass of {makers[0]}: use a class that is one")
    elif named.__module__.partition(".")[0] in _STANDARD_LIBRARY:
        raise MisconfigurationError(
            f"{key}: {path} is a class of Python's standard library, which a config may not create: name another class"
        )


def _expected(hint: Any) -> list[Any]:
    """Return the classes that a type allows, and a ``_Makes`` for every callable. Lists and None are left out."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return []
    if origin is Callable or hint in (Callable, typing.Callable):
        returns = _expected(arguments[1]) if len(arguments) == 2 else []
        return [_Makes([kind for kind in returns if _is_class(kind) and kind.__module__ != "builtins"])]
    if origin in (typing.Union, types.UnionType) or (isinstance(origin, type) and arguments):
        return [kind for argument in arguments for kind in _expected(argument)]
    return [hint]


def _hints(named: Any) -> dict[str, Any]:
    """Return the types of the arguments of a class or function, including those that it passes on to a base class."""
    functions = [base.__init__ for base in reversed(named.__mro__)] if isinstance(named, type) else [named]  # type: ignore[misc]
    hints: dict[str, Any] = {}
    for function in functions:
        try:
            hints |= typing.get_type_hints(function)
        except Exception:  # names that exist only for type checkers
            continue
    return hints


def _returned_class(function: Any) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:
        return None


def _is_class(hint: Any) -> bool:
    return isinstance(hint, type) and hint not in (Any, object)


def _is_class_spec(value: Any) -> bool:
    return hasattr(value, "get") and hasattr(value, "items") and isinstance(value.get("class_path"), str)


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:  # a class inside a class
        return getattr(_import(module), name)
