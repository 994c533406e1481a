"""Reading YAML files of any origin. No message repeats a value from a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.core.errors import MisconfigurationError

#: what is accepted with all aliases written out; the largest config of this package has 200 values, nested 7 deep
_MAX_VALUES = 100_000
_MAX_DEPTH = 50


def read_yaml_file(path: Path) -> Any:
    """Return the content of a YAML file, or raise an error that names the line of the mistake but not the value."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        raise MisconfigurationError(f"{path} is not a text file in UTF-8: save it in UTF-8") from error
    except OSError as error:
        raise MisconfigurationError(f"{path} cannot be read ({error.strerror}): give a readable file") from error
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise MisconfigurationError(f"{path} is not valid YAML: {error.problem}{line}") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # an invalid character, date or number
        raise MisconfigurationError(f"{path} is not valid YAML: give a text file of keys and values") from error
    except RecursionError as error:
        raise MisconfigurationError(_too_deep(path)) from error
    _measure(content, path)
    return content


def quote_key(key: object) -> str:
    """Return a key for a message, unless it is not a valid name: it may be a line of a file with passwords."""
    return f"'{key}'" if is_name(key) else "one of its keys"


def is_name(key: object) -> bool:
    """Return whether a key may be the name of a setting, so that a message may repeat it."""
    return re.fullmatch(r"[\w.+-]{1,60}", str(key)) is not None


def _measure(content: Any, path: Path) -> None:
    """Reject content that contains itself, is nested too deeply, or is huge once aliases are written out."""
    sizes: dict[int, int] = {}

    def size(node: Any, depth: int) -> int:
        if not isinstance(node, dict | list):
            return 1
        if depth > _MAX_DEPTH:
            raise MisconfigurationError(_too_deep(path))
        if id(node) not in sizes:
            items = node.values() if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(size(item, depth + 1) for item in items)
        return sizes[id(node)]

    if size(content, 0) > _MAX_VALUES:
        raise MisconfigurationError(
            f"{path} has more than {_MAX_VALUES:,} values, counting aliases: write a shorter file"
        )


def _too_deep(path: Path) -> str:
    return f"{path} is nested more than {_MAX_DEPTH} deep, or contains itself: remove the nesting"


class _Loader(yaml.SafeLoader):
    """A safe loader that rejects a mapping with the same key twice; YAML would keep only the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} occurs twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        mapping: Mapping[Any, Any] = super().construct_mapping(node, deep)
        return dict(mapping)
