"""Whether a step changes its module: descriptions of the module's attributes before and after it."""

import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning._lightning.names import LightningModule

#: longer containers are assumed to be tables, not something that a step fills
_LONGEST = 1000
#: attributes that Lightning and torch change themselves: those of every module, and an LSTM's lists of its weights
_OWN_ATTRIBUTES = {*vars(LightningModule()), "_flat_weights", "_flat_weight_refs"}


def describe_attributes(module: nn.Module, without: tuple[type[nn.Module], ...] = ()) -> dict[str, Any]:
    """Return a description of every buffer and plain attribute of a module and its layers, by name.

    Args:
        module: the module.
        without: kinds of layers to leave out, together with all layers inside them.
    """
    found = {}
    left_out = tuple(name for name, layer in module.named_modules() if isinstance(layer, without) and name)
    for prefix, layer in module.named_modules():
        if any(prefix == name or prefix.startswith(f"{name}.") for name in left_out):
            continue
        values = {name: value for name, value in vars(layer).items() if name not in _OWN_ATTRIBUTES}
        for name, value in {**values, **dict(layer.named_buffers(recurse=False))}.items():
            found[f"{prefix}.{name}" if prefix else name] = _describe(value)
    return found


def first_change(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of an attribute whose descriptions differ, or None."""
    return next((name for name in {**after, **before} if before.get(name, before) != after.get(name, after)), None)


def _describe(value: Any) -> Any:
    """Return something that is equal before and after a step if the step does not change the value."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1)
        return tuple(value.shape), zlib.crc32(data.view(torch.uint8).numpy().tobytes())
    if isinstance(value, str | bytes | int | float | complex | None):
        return value
    if isinstance(value, Mapping) and len(value) <= _LONGEST:
        return _Same(value), [(_describe(key), _describe(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque | set) and len(value) <= _LONGEST:
        return _Same(value), [_describe(item) for item in value]
    return _Same(value)


class _Same:
    """Equal to another instance only if both hold the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]
