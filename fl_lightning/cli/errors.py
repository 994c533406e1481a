"""Shortening the parser's error messages to one line that names the key, the value and the accepted values."""

import difflib
import importlib
import inspect
import re
from collections.abc import Collection

from fl_lightning.cli.commands import COMMANDS
from fl_lightning.experiments.yaml_file import is_name

#: jsonargparse's messages about an unknown option: on the command line, in a config, and of a class
_UNKNOWN_OPTION = (
    r"unrecognized arguments: --([\w.]+)",
    r"Subcommand '\w+' does not accept option '([\w.]+)'",
    r"Option '([\w.]+)' is not accepted",
)
#: replaces the parser's message about a key that cannot be the name of an option
_NO_NAME = (
    "a key is not a name of at most 60 letters, digits and _ . + -: correct or remove it"
    " (it is not shown here, because the file may hold secrets)"
)


def shorten_parser_error(message: str) -> str:
    """Shorten an error message from jsonargparse. The lines of any other message are only joined."""
    message = _hide_content(_join_lines(message))
    missing = re.fullmatch(rf"the following arguments are required: ((?:{'|'.join(COMMANDS)})\..+)", message)
    if missing:
        names = re.sub(rf"\b(?:{'|'.join(COMMANDS)})\.", "", missing.group(1))
        return f"required, but not set: {names}: give a config that sets them, --config FILE"
    if not message.startswith("Parser key"):
        return message
    base = re.search(r"Subtypes: \[<class '([\w.]+)'>", message)
    key, problem = _innermost_problem(message)
    if problem.startswith("Option "):  # an option of the first type; the value is not of the other types
        problem = problem.split(" - Import path ")[0]
    unknown = re.match(r"Expected a dot import path string: (\S+)", problem)
    if unknown:
        known = _subclass_names(base.group(1)) if base and "Parser key" not in message[1:] else []
        named = unknown.group(1) if re.fullmatch(r"[\w.]+", unknown.group(1)) else "this"  # it may be from any file
        problem = f"{named} is not a known class: use "
        problem += f"{', '.join(known)}, or " if known else ""
        problem += "a full class path, package.module.Class"
    wrong = re.match(r"Import path (?:(\S+) )?does not correspond to a subclass of (\w+)", problem)
    if wrong:
        given = re.search(r"Given value: ([\w.]+)$", message)
        problem = _explain_wrong_class(wrong.group(1) or (given.group(1) if given else "this class"), wrong.group(2))
    if re.match(r"Expected an instantiatable class, but \S+ is abstract", problem):
        problem = "no class is named: give a mapping with class_path and init_args and no other keys"
    bases = list(dict.fromkeys(re.findall(r"Not a valid subclass of (\w+)", problem)))
    if bases:
        problem = f"this is not a {' or '.join(bases)}: name a class, or give a mapping with class_path and init_args"
    problem = re.sub(r"Expected a typing\.Literal\[(.+?)\]\. Got value: (.*)", r"\2 is not one of \1", problem)
    optional = re.fullmatch(r"Expected a typing\.Literal\[(.+?)\]", problem)
    if optional:
        value = message.rpartition("Given value:")[2].strip() or "''"
        problem = f"{value} is not one of {optional[1]}"
    problem = re.sub(r"Expected a <class '(\w+)'>\. Got value: (.*)", r"\2 is not of type \1", problem)
    either = r"Expected a <class '(\w+)'> - Expected a <class '(\w+)'> Given value type: .* Given value: (.*)"
    problem = re.sub(either, r"\3 is not of type \1 or \2", problem)
    return f"{key}: {problem}"


def suggest_option(message: str, options: Collection[str]) -> str:
    """Add similar known options to a message about an unknown option.

    Args:
        message: a message of the parser.
        options: the names of the options that the parser knows.
    """
    unknown = re.match("|".join(_UNKNOWN_OPTION), message)
    name = next(filter(None, unknown.groups())) if unknown else ""
    similar = difflib.get_close_matches(name, sorted(options), n=2, cutoff=0.8)
    return f"{message}: did you mean {' or '.join(similar)}?" if similar else message


def _explain_wrong_class(class_path: str, base: str) -> str:
    from fl_lightning._lightning.package import explain_other_copy  # importing it decides which Lightning is used

    return explain_other_copy(class_path) or f"{class_path} is not a subclass of {base}: use a class that is one"


def _innermost_problem(message: str) -> tuple[str, str]:
    """Return the full key of the wrong value, and what is wrong with it."""
    keys: list[str] = []
    while match := re.match(r'(?:Parser key )?"?([\w.]+)"?: (.*)', message):
        keys.append(match.group(1))
        message = match.group(2)
        if " Errors: - " in message:
            # The value may have one of several types. The user most likely meant the first.
            message = message.split(" Errors: - ", 1)[1].split(" - Expected a <class 'NoneType'>")[0]
    return ".".join(keys), message


def _subclass_names(class_path: str) -> list[str]:
    """Return the names of the concrete subclasses that are imported, sorted."""
    module, _, name = class_path.rpartition(".")
    return sorted(_concrete_subclasses(getattr(importlib.import_module(module), name)))


def _concrete_subclasses(base: type) -> set[str]:
    names: set[str] = set()
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        if not inspect.isabstract(subclass) and not subclass.__name__.startswith("_"):
            names.add(subclass.__name__)
        names |= _concrete_subclasses(subclass)
    return names


def _hide_content(message: str) -> str:
    """Remove keys that are not valid names, and structured values: the parser may have read them from any file."""
    unknown = r"(?:Option|Subcommand '\w+' does not accept option) '(.*?)'(?: is not accepted|: did you mean|$)"
    message = re.sub(unknown, lambda found: found.group() if is_name(found.group(1)) else _NO_NAME, message)
    message = re.sub(r"(Spaces not allowed in keys|Key must be a string, got|Empty nested key): .*", _NO_NAME, message)
    if _NO_NAME in message:  # what follows may repeat a part of the key or its value
        message = message.partition(_NO_NAME)[0] + _NO_NAME
    return re.sub(r"(Got value|Given value): [\[{].*?[\]}](?=$| - )", r"\1: this", message)


def _join_lines(message: str) -> str:
    return re.sub(r"\s*\n\s*", " ", message.strip())
