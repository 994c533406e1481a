"""A checkpoint callback that replaces the previous file only once the new one is complete."""

import os

from fl_lightning._lightning.names import ModelCheckpoint, Trainer


class AtomicCheckpoint(ModelCheckpoint):
    """Writes to another name in the same folder first, so that the previous checkpoint survives if the run is killed.

    Lightning writes to the system's temporary folder and then moves the file, which is not atomic across disks.
    """

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint has been written, in this process or in the run that is resumed."""
        return self._last_global_step_saved != 0

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if "://" in filepath:
            return super()._save_checkpoint(trainer, filepath)
        super()._save_checkpoint(trainer, f"{filepath}.part")
        if trainer.is_global_zero:
            os.replace(f"{filepath}.part", filepath)
        trainer.strategy.barrier()
        self._last_checkpoint_saved = filepath
