"""Checkpoints at the granularity of rounds."""

import os
from pathlib import Path

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.exceptions import MisconfigurationException


class LastRound(ModelCheckpoint):
    """Keeps ``last.ckpt``, the state after the last whole round: what a killed run is resumed from.

    ``ModelCheckpoint(monitor=..., save_last=True)`` is no substitute: its last is that of the last improvement.
    """

    def __init__(self) -> None:
        super().__init__(
            filename="last", monitor=None, save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
        )

    @property
    def state_key(self) -> str:
        """Of its own, so that it never shares state with another ModelCheckpoint."""
        return "LastRound"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first round: another run's checkpoint is not overwritten."""
        assert self.dirpath is not None
        last = Path(self.dirpath, "last.ckpt")
        resumed = trainer.ckpt_path is not None and Path(trainer.ckpt_path).resolve().parent == last.resolve().parent
        if last.is_file() and not resumed and self._last_global_step_saved == 0:
            raise MisconfigurationException(
                f"{last} is of another run: continue it with ckpt_path={last}, or choose another folder"
                " (trainer.default_root_dir, or that of the logger)"
            )

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Under another name first, in the same folder: a kill while it writes leaves the last one as it was.

        Lightning writes to the system's temporary folder and moves, which copies if that is on another disk.
        """
        if "://" in filepath:
            return super()._save_checkpoint(trainer, filepath)
        super()._save_checkpoint(trainer, f"{filepath}.part")
        if trainer.is_global_zero:
            os.replace(f"{filepath}.part", filepath)
        trainer.strategy.barrier()
        self._last_checkpoint_saved = filepath
