"""A griffe extension that turns the Sphinx markup in docstrings into Markdown."""

import re

import griffe


class SphinxMarkup(griffe.Extension):
    """Rewrites docstrings: a role with a full path becomes a link, other roles and double backticks become code."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring. ``::`` before a block of code becomes ``:``."""
        if obj.docstring is not None:
            text = re.sub(r":\w+:`(~?)([\w.]+)`", _link, obj.docstring.value)
            text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)

    def on_class_members(self, *, cls: griffe.Class, **_: object) -> None:
        """Show the arguments of a class that takes them in ``__new__``."""
        if "__new__" in cls.members:
            cls.members.setdefault("__init__", cls.members["__new__"])


def _link(role: re.Match[str]) -> str:
    shortened, path = role.groups()
    shown = path.rpartition(".")[2] if shortened else path
    if not path.startswith("fl_lightning."):
        return f"`{shown}`"
    return f'<autoref optional identifier="{path}"><code>{shown}</code></autoref>'
