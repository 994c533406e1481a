"""Reading a checkpoint from which a run is resumed or evaluated, and finding a good one if it is damaged."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.saved_file import DamagedFileError, read_saved_file

#: the parts of a checkpoint, besides the weights, that a run needs to continue
_TRAINER_PARTS = ("epoch", "global_step", "loops", "optimizer_states", "lr_schedulers", "callbacks")
_SERVER_PARTS = ("run", "aggregator", "store", "clients_state", "bytes", "downloads")


def read_checkpoint(
    path: Path,
    *,
    resume: bool,
    weights: Collection[str] = (),
    server: str = "FederatedServer",
    map_location: Any = "cpu",
    weights_only: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint and verify it.

    Args:
        path: the file.
        resume: whether a run continues from it; otherwise, only its weights are needed.
        weights: names of the weights in which no NaN is allowed; a buffer may have a reason to hold one.
        server: the key of the server among the checkpoint's callbacks.
        map_location: where the tensors are loaded, as for ``torch.load``.
        weights_only: whether only tensors and plain types are loaded, which cannot run code.

    Raises:
        MisconfigurationError: if the checkpoint cannot be used. The message names the newest good one in its folder.
    """
    try:
        content = read_saved_file(path, map_location, weights_only)
        _check_parts(content, resume, server)
        _check_weights(content, weights)
    except DamagedFileError as error:
        raise MisconfigurationError(f"ckpt_path={path} {error}: {_suggest(path, resume, weights, server)}") from error
    return content


def _check_parts(content: Any, resume: bool, server: str) -> None:
    if not isinstance(content, Mapping) or not isinstance(content.get("state_dict"), Mapping):
        raise DamagedFileError("holds no model, so it is not a checkpoint")
    if not resume:
        return
    missing = [name for name in _TRAINER_PARTS if name not in content]
    if missing:
        raise DamagedFileError(f"holds only a part of a run: it lacks {missing[0]}")
    states = content["callbacks"].get(server) if isinstance(content["callbacks"], Mapping) else None
    if not isinstance(states, Mapping):
        raise DamagedFileError("is not the checkpoint of a federation, because it holds no server")
    missing = [name for name in _SERVER_PARTS if name not in states]
    if missing:
        raise DamagedFileError(f"holds only a part of the server's state: it lacks {missing[0]}")


def _check_weights(content: Mapping[str, Any], weights: Collection[str]) -> None:
    for name in weights:
        value = content["state_dict"].get(name)
        if isinstance(value, Tensor) and value.is_floating_point() and bool(torch.isnan(value).any()):
            raise DamagedFileError(f"holds a model with a NaN in {name}")


def _suggest(path: Path, resume: bool, weights: Collection[str], server: str) -> str:
    """Return a hint that names another checkpoint in the same folder that can be used instead."""
    others = [file for file in path.parent.glob("*.ckpt") if file.name != path.name and file.is_file()]
    for other in sorted(others, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            content = read_saved_file(other)
            _check_parts(content, resume, server)
            _check_weights(content, weights)
        except DamagedFileError:
            continue
        if isinstance(content.get("epoch"), int):
            return f"use the one after round {content['epoch'] + 1}, --ckpt_path {other}"
    return "there is no good one in its folder" + (", so start the run again" if resume else "")
