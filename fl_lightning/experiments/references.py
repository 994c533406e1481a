"""Parts that refer to the checkpoint of another cell, with the text ``checkpoint of FedAvg, Central``."""

from collections.abc import Callable, Mapping
from typing import Any

_PREFIX = "checkpoint of "


def needed_cells(part: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the cells whose checkpoints a part refers to, each once."""
    names: dict[str, None] = {}
    resolve(part, lambda name: names.setdefault(name) or "")
    return tuple(names)


def resolve(part: dict[str, Any], checkpoint: Callable[[str], str]) -> dict[str, Any]:
    """Return a part in which every reference is replaced by the path of the checkpoint of that cell."""
    return map_texts(
        part, lambda text: checkpoint(text.removeprefix(_PREFIX).strip()) if text.startswith(_PREFIX) else text
    )


def map_texts(tree: Any, change: Callable[[str], str]) -> Any:
    """Change every text in a tree of mappings and lists."""
    if isinstance(tree, dict):
        return {key: map_texts(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_texts(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def find_circle(needs: Mapping[str, tuple[str, ...]]) -> list[str] | None:
    """Return the names along a circle of cells that need each other, from one back to itself; None if there is none."""
    cleared: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in cleared:
            return None
        circles = (follow(other, [*path, name]) for other in needs[name])
        circle = next((found for found in circles if found), None)
        cleared.add(name)
        return circle

    return next((circle for name in needs if (circle := follow(name, []))), None)
