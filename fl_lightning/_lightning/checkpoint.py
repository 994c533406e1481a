"""Checkpoints that are verified when they are written and read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_lightning._lightning.names import ModelCheckpoint, TorchCheckpointIO, Trainer
from fl_lightning.core.saved_file import PART, read_saved_file, replace_durably, write_saved_file


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
