"""Explaining why a model cannot train on a batch of the data, before the first round."""

import traceback
from types import FrameType
from typing import Any

from torch import Tensor, nn

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FederatedDataModule

#: packages that fail only when they are given something unsuitable; an error in any other code is the user's own
_LIBRARIES = ("torch", "torchvision", "torchmetrics", "jsonargparse", "fl_lightning")


def check_num_classes(module: nn.Module, data: FederatedDataModule) -> None:
    """Reject a module whose ``num_classes`` is less than the number of classes in the training data."""
    expected, labels = getattr(module, "num_classes", None), data.labels
    if not isinstance(expected, int) or labels is None or len(labels) == 0:
        return
    highest = int(labels.max())
    if highest >= expected:
        raise MisconfigurationError(
            f"num_classes={expected}, but the training data has the class {highest}, counted from 0:"
            f" set num_classes of {type(module).__name__} to {highest + 1} or more"
        )


def explain_trial(error: Exception, module: nn.Module, batch: Any) -> MisconfigurationError | None:
    """Return a one-line error that names the layer and the shapes; None if the user's own code raised the error.

    Args:
        error: what training on the batch raised.
        module: the model.
        batch: the batch.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames[-1].f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
        return None
    layer = _innermost_layer(frames, module)
    reason = " ".join(str(error).split())
    return MisconfigurationError(
        f"{type(module).__name__} cannot train on a batch of {_shapes(batch)}:{layer}"
        f" {type(error).__name__}: {reason[:300]}: change the model, its optimiser or the data so that they fit"
    )


def _innermost_layer(frames: list[FrameType], module: nn.Module) -> str:
    """Return the name of the layer that raised the error and the shape of its input."""
    for frame in reversed(frames):
        layer = frame.f_locals.get("self")
        if isinstance(layer, nn.Module):
            names = [name for name, part in module.named_modules() if type(part) is type(layer) and _same(part, layer)]
            given = next((value for value in frame.f_locals.values() if isinstance(value, Tensor)), None)
            shape = "" if given is None else f" got {_shapes(given)},"
            return f" {names[0]} ({type(layer).__name__}){shape}" if names and names[0] else ""
    return ""


def _same(part: nn.Module, layer: nn.Module) -> bool:
    """Return whether a layer of a copied model is this layer: their representations and their shapes are equal."""
    shapes = [[tuple(value.shape) for value in each.state_dict().values()] for each in (part, layer)]
    return repr(part) == repr(layer) and shapes[0] == shapes[1]


def _shapes(batch: Any) -> str:
    """Return the shapes of a batch's tensors, as ``shape (16, 1, 8, 8) and (16,)``."""
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    shapes = [str(tuple(value.shape)) for value in values if isinstance(value, Tensor)]
    return f"shape {' and '.join(shapes)}" if shapes else f"type {type(batch).__name__}"
