"""Checkpoints of complete rounds."""

from pathlib import Path

from fl_lightning._lightning.checkpoint import AtomicCheckpoint
from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder


class LastRound(AtomicCheckpoint):
    """Keeps ``last.ckpt``, the state after the last complete round, from which a killed run is resumed.

    ``ModelCheckpoint(monitor=..., save_last=True)`` is no substitute: its last checkpoint is the last improvement.
    """

    def __init__(self) -> None:
        super().__init__(
            filename=RunFolder.LAST,
            monitor=None,
            save_top_k=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    @property
    def state_key(self) -> str:
        """A separate key, so that this callback never shares state with another ModelCheckpoint."""
        return "LastRound"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to overwrite another run's checkpoint."""
        assert self.dirpath is not None
        last = Path(self.dirpath, f"{RunFolder.LAST}.ckpt")
        resumed = trainer.ckpt_path is not None and Path(trainer.ckpt_path).resolve().parent == last.resolve().parent
        if last.is_file() and not resumed and not self.has_saved:
            raise MisconfigurationError(
                f"{last} belongs to another run: continue it with ckpt_path={last}, or choose another folder"
                " (trainer.default_root_dir, or the logger's)"
            )
