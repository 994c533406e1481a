"""Reading a checkpoint from which a run is resumed or evaluated, and finding a good one if it is damaged."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.callbacks.run.saved_types import SavedServer, SavedTrainer
from fl_lightning.client.failures import describe_error
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.plain_types import find_difference, find_mismatch
from fl_lightning.core.saved_file import DamagedFileError, read_saved_file


def read_checkpoint(
    path: Path,
    *,
    resume: bool,
    weights: Collection[str] = (),
    server: str = "FederatedServer",
    example: Callable[[], Mapping[str, Any]] = dict,
    map_location: Any = "cpu",
    weights_only: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint and verify it.

    Args:
        path: the file.
        resume: whether a run continues from it; otherwise, only its weights are needed.
        weights: names of the weights in which no NaN is allowed; a buffer may have a reason to hold one.
        server: the key of the server among the checkpoint's callbacks.
        example: returns parts of a checkpoint of the run that is about to be resumed, which have the right types.
        map_location: where the tensors are loaded, as for ``torch.load``.
        weights_only: whether only tensors and plain types are loaded, which cannot run code.

    Raises:
        MisconfigurationError: if the checkpoint cannot be used. The message names the newest good one in its folder.
    """
    try:
        content = read_saved_file(path, map_location, weights_only)
        _check_parts(content, resume, server)
        if resume:
            _raise_if(find_difference(content, example()))
        _check_weights(content, weights)
    except DamagedFileError as error:
        raise MisconfigurationError(
            f"ckpt_path={path} {error}: {suggest_checkpoint(path, resume, weights, server)}"
        ) from error
    return content


def _check_parts(content: Any, resume: bool, server: str) -> None:
    if not isinstance(content, Mapping) or not isinstance(content.get("state_dict"), Mapping):
        raise DamagedFileError("holds no model, so it is not a checkpoint")
    if not resume:
        return
    callbacks = content.get("callbacks", {})
    states = callbacks.get(server) if isinstance(callbacks, Mapping) else None
    if "callbacks" in content and not isinstance(states, Mapping):
        raise DamagedFileError("is not the checkpoint of a federation, because it holds no server")
    parts = ((content, SavedTrainer, "a run", ""), (states, SavedServer, "the server's state", f"callbacks.{server}"))
    for values, kind, whole, name in parts:
        assert isinstance(values, Mapping)  # or the run lacks callbacks
        missing = [key for key in kind.__annotations__ if key not in values]
        if missing:
            raise DamagedFileError(f"holds only a part of {whole}: it lacks {missing[0]}")
        _raise_if(find_mismatch(values, kind, name))


def _raise_if(problem: str | None) -> None:
    if problem is not None:
        raise DamagedFileError(f"holds a value that no run has saved: {problem}")


def explain_failed_restore(
    path: str | Path, part: str, error: Exception, *, resume: bool, weights: Collection[str], server: str
) -> MisconfigurationError:
    """Return a one-line error for a checkpoint that was verified, but that something cannot be restored from.

    Args:
        path: the checkpoint.
        part: what could not be restored.
        error: the error that this caused.
        resume: whether a run continues from it; otherwise, only its weights are needed.
        weights: names of the weights in which no NaN is allowed.
        server: the key of the server among the checkpoint's callbacks.
    """
    suggestion = suggest_checkpoint(Path(path), resume, weights, server)
    return MisconfigurationError(
        f"ckpt_path={path} does not fit this run: {part} cannot be restored, {describe_error(error)}: {suggestion}"
    )


def _check_weights(content: Mapping[str, Any], weights: Collection[str]) -> None:
    for name in weights:
        value = content["state_dict"].get(name)
        if isinstance(value, Tensor) and value.is_floating_point() and bool(torch.isnan(value).any()):
            raise DamagedFileError(f"holds a model with a NaN in {name}")


def suggest_checkpoint(path: Path, resume: bool, weights: Collection[str] = (), server: str = "FederatedServer") -> str:
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
