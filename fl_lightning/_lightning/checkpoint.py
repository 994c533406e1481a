"""Checkpoints that are verified when they are written and read."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning._lightning.names import Callback, ModelCheckpoint, TorchCheckpointIO, Trainer
from fl_lightning.core.errors import MisconfigurationError, StorageError, find_disk_error
from fl_lightning.core.plain_types import find_difference
from fl_lightning.core.saved_file import PART, read_saved_file, replace_durably, write_saved_file
from fl_lightning.core.user_code import frames_of, is_user_code

#: the methods with which Lightning restores a checkpoint, and what each of them restores
_RESTORING = {
    "resume_start": "the run",
    "restore_model": "the model",
    "restore_datamodule": "the data",
    "restore_callbacks": "a callback",
    "restore_precision_plugin_state": "the precision",
    "restore_loops": "the progress",
    "restore_optimizers": "the server's optimiser",
    "restore_lr_schedulers": "a scheduler",
}
_PACKAGES = ("pytorch_lightning", "lightning", "fl_lightning")


class VerifiedCheckpointIO(TorchCheckpointIO):
    """Writes and reads the files of all checkpoint callbacks, and verifies them each time.

    Lightning's own class collects a file in memory first, and trusts what it reads. It still handles addresses such as
    ``s3://...``.

    Args:
        load: reads a file, given its path and further arguments of :func:`read_saved_file`.
    """

    def __init__(self, load: Callable[..., dict[str, Any]] = read_saved_file) -> None:
        self._load = load

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_saved_file(checkpoint, Path(path))

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable | None = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        if "://" in str(path):
            return super().load_checkpoint(path, map_location, weights_only)
        return self._load(Path(path), map_location=map_location, weights_only=weights_only is not False)


def verify_checkpoints(trainer: Trainer, load: Callable[..., dict[str, Any]]) -> None:
    """Let the Trainer verify all checkpoints that it writes or reads, unless the user chose a CheckpointIO.

    Args:
        trainer: the Trainer.
        load: reads a checkpoint, see :class:`VerifiedCheckpointIO`.
    """
    if type(trainer.strategy.checkpoint_io) in (TorchCheckpointIO, VerifiedCheckpointIO):
        trainer.strategy.checkpoint_io = VerifiedCheckpointIO(load)


def explain_failed_restores(trainer: Trainer, explain: Callable[[str, str, Exception], Exception]) -> None:
    """Replace the errors that a checkpoint with unsuitable content causes while Lightning restores it.

    Errors in a user's own code stay as they are.

    Args:
        trainer: the Trainer.
        explain: returns the error to raise, given the checkpoint, what cannot be restored, and the error.
    """
    connector = trainer._checkpoint_connector

    def guarded(method: str, part: str) -> Callable[..., None]:
        restore = getattr(type(connector), method)

        @wraps(restore)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            try:
                if method == "restore_optimizers":
                    _check_optimizers(trainer, connector._loaded_checkpoint)
                restore(connector, *args, **kwargs)
            except (MisconfigurationError, StorageError):
                raise
            except Exception as error:
                frames = frames_of(error.__traceback__)
                known = type(error).__name__ == "MisconfigurationException" or find_disk_error(error) is not None
                if known or not connector._ckpt_path or any(is_user_code(frame) for frame in frames):
                    raise
                restored = [frame.f_locals.get("callback") for frame in frames]
                names = [type(callback).__name__ for callback in restored if isinstance(callback, Callback)]
                raise explain(str(connector._ckpt_path), [part, *names][-1], error) from error

        return wrapper

    for method, part in _RESTORING.items():
        setattr(connector, method, guarded(method, part))


def example_of_checkpoint(trainer: Trainer, server: str) -> dict[str, Any]:
    """Return parts of a checkpoint of a run that is about to begin: the loops and the callbacks of libraries.

    Args:
        trainer: the Trainer, once its callbacks are set up.
        server: the key of the server, whose state is left out.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    known = [callback for callback in callbacks if type(callback).__module__.partition(".")[0] in _PACKAGES]
    states = {callback.state_key: callback.state_dict() for callback in known if callback.state_key != server}
    return {"loops": {"fit_loop": trainer.fit_loop.state_dict()}, "callbacks": states}


def _check_optimizers(trainer: Trainer, checkpoint: Mapping[str, Any]) -> None:
    """Reject settings of a type that the optimisers do not have, and parameters that remember different things.

    Raises:
        TypeError: if there are any.
    """
    for optimizer, state in zip(trainer.optimizers, checkpoint["optimizer_states"], strict=True):
        groups = optimizer.state_dict()["param_groups"]
        problem = find_difference(state["param_groups"], groups, "param_groups")
        if problem is not None:
            raise TypeError(problem)
        for group, own in zip(state["param_groups"], groups, strict=False):
            for name in own:
                if own[name] is None and not isinstance(group.get(name), bool | Tensor | None):  # such as fused
                    raise TypeError(f"param_groups.{name} is of type {type(group[name]).__name__}, not a flag")
            kept = [state["state"][number] for number in group["params"] if number in state["state"]]
            kinds = [{name: type(value) for name, value in values.items()} for values in kept]
            if any(kind != kinds[0] for kind in kinds):
                raise TypeError("state holds values of different types for different parameters")


class AtomicCheckpoint(ModelCheckpoint):
    """Replaces the previous checkpoint only once the new one is complete, whatever CheckpointIO the Trainer has."""

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint has been written, in this process or in the run that is resumed."""
        return self._last_global_step_saved != 0

    def before_replacing(self, path: Path) -> None:
        """Called on rank zero when a new checkpoint is complete, just before it replaces the one at ``path``."""

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if "://" in filepath:
            return super()._save_checkpoint(trainer, filepath)
        super()._save_checkpoint(trainer, f"{filepath}{PART}")
        if trainer.is_global_zero:
            self.before_replacing(Path(filepath))
            replace_durably(Path(f"{filepath}{PART}"), Path(filepath))
        trainer.strategy.barrier()
        self._last_checkpoint_saved = filepath
