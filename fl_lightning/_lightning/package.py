"""Which Lightning is in use: ``pytorch_lightning`` and ``lightning.pytorch`` are separate copies of the same classes.

The choice is made once per process, when the first class of this package is imported: the copy that the environment
variable names, or else the one that the program has imported first, or else ``pytorch_lightning`` if it is installed.
"""

import importlib
import importlib.util
import os
import re
import sys

from fl_lightning.core.errors import MisconfigurationError

#: the environment variable that decides which copy is used
VARIABLE = "FL_LIGHTNING_PACKAGE"

_COPIES = ("pytorch_lightning", "lightning.pytorch")


def _choose() -> str:
    named = os.environ.get(VARIABLE)
    if named:
        copy = "lightning.pytorch" if named == "lightning" else named
        if copy not in _COPIES:
            raise MisconfigurationError(f"{VARIABLE}={named}: set it to pytorch_lightning or lightning")
        if importlib.util.find_spec(copy.partition(".")[0]) is None:
            raise MisconfigurationError(f"{VARIABLE}={named}, but it is not installed: unset it, or install {named}")
        return copy
    imported = next((name for name in sys.modules if name in _COPIES), None)
    return imported or (_COPIES[0] if importlib.util.find_spec(_COPIES[0]) else _COPIES[1])


#: the copy in use
PACKAGE = _choose()


def refuse_other_copy(*objects: object) -> None:
    """Reject classes, and objects of classes, that derive from the copy that is not in use.

    Lightning itself would say that a module is not a LightningModule, although it is one.
    """
    other = _other_copy()
    for item in objects:
        kind = item if isinstance(item, type) else type(item)
        if _is_of(other, kind):
            raise MisconfigurationError(
                f"{kind.__name__} is made with {other}, but fl_lightning uses {PACKAGE}, a separate copy of the"
                f" same classes: import {other} before fl_lightning, or set {VARIABLE}={other.partition('.')[0]}"
            )


def explain_other_copy(class_path: str) -> str | None:
    """Return what is wrong with a class from the copy that is not in use, and what to write instead, otherwise None."""
    other = _other_copy()
    module, _, name = class_path.rpartition(".")
    try:
        named = getattr(importlib.import_module(module), name)
    except Exception:
        return None  # the parser has reported it
    if not isinstance(named, type) or not _is_of(other, named):
        return None
    renamed = re.sub(r"^(pytorch_lightning|lightning\.pytorch|lightning)\.", f"{PACKAGE}.", class_path)
    fix = f"write {renamed}" if renamed != class_path else f"let {module} import {PACKAGE} instead of {other}"
    return f"{class_path} is made with {other}, but this run uses {PACKAGE}, a separate copy of the same classes: {fix}"


def explain_mixed_copies() -> str | None:
    """Return a line about which copy is in use if the program has imported both, otherwise None."""
    if not all(copy in sys.modules for copy in _COPIES):
        return None
    other = _other_copy()
    return (
        f"This program imports both {PACKAGE} and {other}. fl_lightning uses {PACKAGE}: use its Trainer,"
        f" or set {VARIABLE}={other.partition('.')[0]}"
    )


def _other_copy() -> str:
    return next(copy for copy in _COPIES if copy != PACKAGE)


def _is_of(copy: str, named: type) -> bool:
    """Return whether a class derives from one of the copy's classes."""
    return any(base.__module__.startswith(f"{copy}.") for base in named.__mro__)
