"""A griffe extension that turns the Sphinx markup in docstrings into Markdown."""

import re

import griffe


class SphinxRoles(griffe.Extension):
    """Turns ``:class:`~a.b.C``` into a link to ``a.b.C`` that shows ``C``, and ``::`` at the end of a line into ``:``."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rewrite the docstring of every object that is loaded."""
        if obj.docstring is not None:
            text = re.sub(r":\w+:`(~?)([\w.]+)`", _link, obj.docstring.value)
            text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: object) -> None:
        """Show the arguments of a class that takes them in ``__new__``."""
        if "__new__" in cls.members:
            cls.members.setdefault("__init__", cls.members["__new__"])


def _link(role: re.Match[str]) -> str:
    shortened, path = role.groups()
    shown = path.rpartition(".")[2] if shortened else path
    if not path.startswith("fl_lightning."):
        return f"`{shown}`"
    return f'<autoref optional identifier="{path}"><code>{shown}</code></autoref>'
