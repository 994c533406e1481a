"""Checkpoints of complete rounds."""

import os
import shutil
from pathlib import Path

from fl_lightning._lightning.checkpoint import AtomicCheckpoint
from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.core.errors import MisconfigurationError, StorageError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.core.run_lock import RunLock
from fl_lightning.core.saved_file import PART


class LastRound(AtomicCheckpoint):
    """Keeps ``last.ckpt``, the state after the last complete round, from which a killed run is resumed.

    The checkpoint of the previous round stays as ``previous.ckpt``, in case the disk damages the last one. While the
    run lasts, its folder is locked, so that no other process resumes the same run.

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
        self._lock: RunLock | None = None
        self._last_is_good = False

    @property
    def state_key(self) -> str:
        """A separate key, so that this callback never shares state with another ModelCheckpoint."""
        return "LastRound"

    @property
    def folder(self) -> RunFolder:
        """The folder of the run. It is known after ``setup``."""
        assert self.dirpath is not None
        return RunFolder.of_checkpoint(Path(self.dirpath, f"{RunFolder.LAST}.ckpt"))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lock the folder of the run, and remove what a killed process left incomplete."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit" or "://" in str(self.dirpath):
            return
        problem = self._take_lock() if trainer.is_global_zero else None
        problem = trainer.strategy.broadcast(problem)
        if problem is not None:
            raise MisconfigurationError(problem)

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
        # Only a file that was verified may replace the previous one.
        self._last_is_good = resumed and Path(str(trainer.ckpt_path)).resolve() == last.resolve()

    def before_replacing(self, path: Path) -> None:
        """Keep the last checkpoint as the previous one, if it was written or verified by this process."""
        if path.is_file() and self._last_is_good:
            previous = self.folder.previous_checkpoint
            part = previous.with_name(previous.name + PART)
            part.unlink(missing_ok=True)
            try:
                os.link(path, part)
            except OSError:  # the file system has no links
                shutil.copyfile(path, part)
            os.replace(part, previous)
        self._last_is_good = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the round. If the folder was removed meanwhile, stop, because the rest of the run is lost."""
        super().on_train_epoch_end(trainer, pl_module)
        if self._lock is not None and self._lock.lost:
            raise StorageError(
                f"{self.folder} was removed while the run was writing to it: the model after round"
                f" {trainer.current_epoch + 1} is in {self.folder.checkpoint}, but its configuration and logs are lost"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Unlock the folder."""
        self._unlock()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Unlock the folder."""
        super().on_exception(trainer, pl_module, exception)
        self._unlock()

    def _take_lock(self) -> str | None:
        """Lock the folder. Return what is wrong if that is not possible."""
        self._unlock()
        try:
            self._lock = RunLock(self.folder)
        except MisconfigurationError as error:
            return str(error)
        for stale in self.folder.checkpoint.parent.glob(f"*{PART}"):
            stale.unlink(missing_ok=True)
        return None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
