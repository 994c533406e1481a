"""Checks whether nested values, such as the content of a file, have the types that are expected."""

import re
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor


def find_mismatch(value: Any, expected: Any, name: str = "") -> str | None:
    """Return what does not have the expected type, or None if everything does.

    Args:
        value: nested dictionaries and lists.
        expected: a class, ``Any``, a ``TypedDict``, ``dict[...]``, ``list[...]`` or a union of these. Further keys of a
            ``TypedDict`` may have any value, and an integer may replace a float.
        name: where the value is, such as ``callbacks.FederatedServer``.

    Example:
        >>> find_mismatch({"up": 3, "down": "4"}, dict[str, int], "bytes")
        'bytes.down is a str, not an int'
    """
    if expected is Any:
        return None
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (types.UnionType, Union):
        problems = [find_mismatch(value, alternative, name) for alternative in arguments]
        if None in problems:
            return None
        inner = [problem for problem in problems if not str(problem).startswith(f"{name} is a")]
        return inner[0] if inner else _wrong(value, expected, name)
    if is_typeddict(expected):
        if not isinstance(value, Mapping):
            return _wrong(value, dict, name)
        for key, kind in get_type_hints(expected).items():
            if key not in value:
                if key in expected.__required_keys__:
                    return f"{name or 'it'} lacks {key}"
                continue
            problem = find_mismatch(value[key], kind, _join(name, key))
            if problem is not None:
                return problem
        return None
    if origin is dict:
        if not isinstance(value, Mapping):
            return _wrong(value, dict, name)
        problems = [find_mismatch(key, arguments[0], f"a key of {name}") for key in value]
        problems += [find_mismatch(item, arguments[1], _join(name, key)) for key, item in value.items()]
        return next(filter(None, problems), None)
    if origin is list:
        if not isinstance(value, list):
            return _wrong(value, list, name)
        problems = [find_mismatch(item, arguments[0], _join(name, place)) for place, item in enumerate(value)]
        return next(filter(None, problems), None)
    if expected in (None, types.NoneType):
        return None if value is None else _wrong(value, expected, name)
    return None if _is_a(value, expected) else _wrong(value, expected, name)


def find_difference(value: Any, example: Any, name: str = "") -> str | None:
    """Return what has another type than in an example, or None.

    An example of None matches any value, because it may not be known yet. A value of None matches any example except a
    number. Keys and items that only one of the two has are not compared.
    """
    is_number = isinstance(example, int | float) and not isinstance(example, bool)
    if example is None or (value is None and not is_number):
        return None
    if isinstance(example, Mapping):
        if not isinstance(value, Mapping):
            return _wrong(value, dict, name)
        problems = (
            find_difference(value[key], example[key], f"{name}.{key}".lstrip(".")) for key in example if key in value
        )
        return next(filter(None, problems), None)
    if isinstance(example, list | tuple):
        if not isinstance(value, list | tuple):
            return _wrong(value, type(example), name)
        problems = (
            find_difference(*pair, _join(name, place)) for place, pair in enumerate(zip(value, example, strict=False))
        )
        return next(filter(None, problems), None)
    if isinstance(example, Tensor) and isinstance(value, Tensor):
        if value.shape != example.shape or value.is_floating_point() != example.is_floating_point():
            return f"{name} is {_describe(value)}, not {_describe(example)}"
        return None
    if is_number:
        return None if _is_a(value, float) else _wrong(value, type(example), name)
    return None if isinstance(value, type(example)) else _wrong(value, type(example), name)


def require_type(value: Any, expected: Any, name: str) -> Any:
    """Return the value if it has the expected type, see :func:`find_mismatch`.

    Raises:
        TypeError: if it has another type.
    """
    problem = find_mismatch(value, expected, name)
    if problem is not None:
        raise TypeError(problem)
    return value


def _is_a(value: Any, expected: type) -> bool:
    if isinstance(value, bool) and expected in (int, float):
        return False
    return isinstance(value, (int, float) if expected is float else expected)


def _wrong(value: Any, expected: Any, name: str) -> str:
    kinds = [kind for kind in get_args(expected) or [expected] if kind is not Any]
    named = " or ".join(_name(get_origin(kind) or kind) for kind in kinds)
    return f"{name or 'it'} is {_name(type(value))}, not {named}"


def _name(kind: Any) -> str:
    if kind in (None, types.NoneType):
        return "None"
    name = "dict" if is_typeddict(kind) else kind.__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _describe(value: Tensor) -> str:
    return f"a tensor of type {value.dtype} and shape {list(value.shape)}"


def _join(name: str, key: object) -> str:
    """Return the name of an entry. A key that is not a valid name is left out: the file may be from anywhere."""
    shown = str(key) if re.fullmatch(r"[\w.+-]{1,60}", str(key)) else "(one of its keys)"
    return f"{name}.{shown}" if name else shown
