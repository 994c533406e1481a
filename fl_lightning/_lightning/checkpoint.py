"""A checkpoint that replaces the one before it only when it is complete."""

import os

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint


class AtomicCheckpoint(ModelCheckpoint):
    """Writes under another name in the same folder first, so that a kill while it writes leaves the last one intact.

    Lightning writes to the system's temporary folder and moves the file, which copies it if that is on another disk.
    """

    @property
    def has_saved(self) -> bool:
        """Whether it has written a checkpoint, in this process or in the run that is resumed."""
        return self._last_global_step_saved != 0

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if "://" in filepath:
            return super()._save_checkpoint(trainer, filepath)
        super()._save_checkpoint(trainer, f"{filepath}.part")
        if trainer.is_global_zero:
            os.replace(f"{filepath}.part", filepath)
        trainer.strategy.barrier()
        self._last_checkpoint_saved = filepath
