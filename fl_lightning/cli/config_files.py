"""Config files, checked before the parser reads them. No message repeats a value from a file."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.yaml_file import quote_key, read_yaml_file

#: keys of a mapping that names a class; they may hold an empty mapping
_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


#: options whose value may be a file with settings
_SECTIONS = ("--model", "--data", "--client", "--server", "--trainer")


def check_section_files(args: Sequence[str]) -> None:
    """Reject a file that is given for a section, ``--model FILE``, but does not hold settings."""
    for path in config_files(args, _SECTIONS):
        if not isinstance(read_yaml_file(path), dict):
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
            raise MisconfigurationError(
                f"{path}: {quote_key(name)} is not a valid name: use the name of a section or a setting"
            )
        if name in sections and not isinstance(value, dict | str):  # a text is the path of a file
            raise MisconfigurationError(
                f"{path}: {name} is {_kind(value)}, but it is a section: give it settings, or leave it out"
            )
        if name in sections and isinstance(value, dict):
            for key, inner in value.items():
                if f"{name}.{key}" == "server.client":
                    raise MisconfigurationError(f"{path}: server.client is set, but client is a section: move it there")
                if inner in (None, {}) and name != "model" and not _is_known(f"{name}.{key}", settings):
                    raise MisconfigurationError(f"{path}: {quote_key(f'{name}.{key}')} is not a setting: remove it")
        elif name not in sections and value in (None, {}) and not _is_known(name, known):
            raise MisconfigurationError(f"{path}: {quote_key(name)} is not a section: remove it")


def check_arguments(path: Path, content: Any, parsed: Any, key: str = "") -> None:
    """Reject unknown arguments of a class that hold an empty mapping, which the parser does not see.

    Args:
        path: the file.
        content: a part of what it holds.
        parsed: what the parser made of it.
        key: where the part is.
    """
    if isinstance(content, list) and isinstance(parsed, list):
        for number, item in enumerate(content):
            class_path = item.get("class_path") if isinstance(item, dict) else None
            alike = [found for found in parsed if _names(found, class_path)]
            if len(alike) == 1:  # later configs may have added more, so positions need not agree
                check_arguments(path, item, alike[0], f"{key}.{number}")
    elif isinstance(content, dict) and hasattr(parsed, "get"):
        class_path = content.get("class_path")
        if isinstance(class_path, str) and not _names(parsed, class_path):
            return  # a later config has replaced the class
        for name, value in content.items():
            inside = f"{key}.{name}".lstrip(".")
            found = parsed.get(str(name).removesuffix("+"))
            if value == {} and found is None and key and name not in _CLASS_KEYS and key.endswith("init_args"):
                raise MisconfigurationError(f"{path}: {quote_key(inside)} is not an argument: remove it")
            check_arguments(path, value, {} if found is None and name == "init_args" else found, inside)


def _names(found: Any, class_path: Any) -> bool:
    """Return whether a parsed part names this class; the parser has completed its path."""
    name = found.get("class_path") if hasattr(found, "get") else None
    return isinstance(class_path, str) and isinstance(name, str) and name.split(".")[-1] == class_path.split(".")[-1]


def _is_known(name: str, known: Collection[str]) -> bool:
    name = name.removesuffix("+")
    return any(option == name or option.startswith(f"{name}.") for option in known)


def _kind(value: Any) -> str:
    kinds = {type(None): "null", str: "a string", list: "a list", bool: "a boolean"}
    return kinds.get(type(value), "a number")
