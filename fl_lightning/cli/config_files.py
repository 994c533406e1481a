"""Config files, checked before the parser reads them. No message repeats what is in a file."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.core.errors import MisconfigurationError

#: what is accepted with all aliases written out; the largest config of this package has 200 values, nested 7 deep
_MAX_VALUES = 100_000
_MAX_DEPTH = 50
#: keys of a mapping that names a class; they may hold an empty mapping
_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


def read_config_file(path: Path) -> Any:
    """Return the content of a YAML file, or raise an error that names the line of the mistake but not its content."""
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
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a character, date or number that is none
        raise MisconfigurationError(f"{path} is not valid YAML: give a text file of keys and values") from error
    except RecursionError as error:
        raise MisconfigurationError(_too_deep(path)) from error
    _measure(content, path)
    return content


#: options whose value may be a file with settings
_SECTIONS = ("--model", "--data", "--client", "--server", "--trainer")


def check_section_files(args: Sequence[str]) -> None:
    """Reject a file that is given for a section, ``--model FILE``, but does not hold settings."""
    for path in config_files(args, _SECTIONS):
        if not isinstance(read_config_file(path), dict):
            raise MisconfigurationError(f"{path} holds no settings: give a YAML file of keys and values")


def config_files(args: Sequence[str], options: Sequence[str] = ("--config", "-c")) -> Iterator[Path]:
    """Yield the existing files that options name, by default ``--config``, in their order."""
    for number, argument in enumerate(args):
        option, separator, value = argument.partition("=")
        if option in options:
            value = value if separator else "".join(args[number + 1 : number + 2])
            if value and len(value) < 256 and Path(value).expanduser().exists():
                yield Path(value).expanduser()


def check_sections(path: Path, content: Any, known: Collection[str]) -> None:
    """Reject a config that is not made of sections, and unknown settings that hold nothing.

    The parser reports all other unknown settings, but it does not see ``server: null`` or ``unknown: {}``.

    Args:
        path: the file.
        content: what it holds.
        known: names of all settings, such as ``client.epochs``.
    """
    settings = [name for name in known if "." in name and not name.endswith(".help")]
    sections = {name.partition(".")[0] for name in settings} | {"model"}
    if not isinstance(content, dict):
        kind = "empty" if content is None else _kind(content)
        raise MisconfigurationError(
            f"{path} is {kind}, not a config: write sections, such as {', '.join(sorted(sections))}"
        )
    for name, value in content.items():
        if not isinstance(name, str) or not name:
            raise MisconfigurationError(f"{path} has the key {name!r}: set it to the name of a section or a setting")
        if name in sections and not isinstance(value, dict | str):  # a text is the path of a file
            raise MisconfigurationError(
                f"{path}: {name} is {_kind(value)}, but it is a section: give it settings, or leave it out"
            )
        if name in sections and isinstance(value, dict):
            for key, inner in value.items():
                if f"{name}.{key}" == "server.client":
                    raise MisconfigurationError(f"{path}: server.client is set, but client is a section: move it there")
                if inner in (None, {}) and name != "model" and not _is_known(f"{name}.{key}", settings):
                    raise MisconfigurationError(f"{path}: '{name}.{key}' is not a setting: remove it")
        elif name not in sections and value in (None, {}) and not _is_known(name, known):
            raise MisconfigurationError(f"{path}: '{name}' is not a section: remove it")


def check_arguments(path: Path, content: Any, parsed: Any, key: str = "") -> None:
    """Reject unknown arguments of a class that hold an empty mapping, which the parser does not see.

    Args:
        path: the file.
        content: a part of what it holds.
        parsed: what the parser has made of it.
        key: where the part is.
    """
    if isinstance(content, list) and isinstance(parsed, list):
        for number, item in enumerate(content):
            class_path = item.get("class_path") if isinstance(item, dict) else None
            alike = [found for found in parsed if _names(found, class_path)]
            if len(alike) == 1:  # further configs may have added more, so positions say nothing
                check_arguments(path, item, alike[0], f"{key}.{number}")
    elif isinstance(content, dict) and hasattr(parsed, "get"):
        class_path = content.get("class_path")
        if isinstance(class_path, str) and not _names(parsed, class_path):
            return  # a later config has replaced the class
        for name, value in content.items():
            inside = f"{key}.{name}".lstrip(".")
            found = parsed.get(str(name).removesuffix("+"))
            if value == {} and found is None and key and name not in _CLASS_KEYS and key.endswith("init_args"):
                raise MisconfigurationError(f"{path}: '{inside}' is not an argument: remove it")
            check_arguments(path, value, {} if found is None and name == "init_args" else found, inside)


def _names(found: Any, class_path: Any) -> bool:
    """Return whether a parsed part names this class; the parser has completed its path."""
    name = found.get("class_path") if hasattr(found, "get") else None
    return isinstance(class_path, str) and isinstance(name, str) and name.split(".")[-1] == class_path.split(".")[-1]


def _is_known(name: str, known: Collection[str]) -> bool:
    name = name.removesuffix("+")
    return any(option == name or option.startswith(f"{name}.") for option in known)


def _kind(value: Any) -> str:
    kinds = {type(None): "null", str: "a text", list: "a list", bool: "a truth value"}
    return kinds.get(type(value), "a number")


def _measure(content: Any, path: Path) -> None:
    """Reject content that is nested without end, too deeply, or is huge once aliases are written out."""
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
            f"{path} has more than {_MAX_VALUES:,} values, counting aliases: a config of a federation is shorter"
        )


def _too_deep(path: Path) -> str:
    return f"{path} is nested more than {_MAX_DEPTH} deep, or contains itself: remove the nesting"


class _Loader(yaml.SafeLoader):
    """A safe loader that rejects a mapping with the same key twice, of which YAML would keep only the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} is there twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        mapping: Mapping[Any, Any] = super().construct_mapping(node, deep)
        return dict(mapping)
