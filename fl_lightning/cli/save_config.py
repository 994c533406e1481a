"""The configuration of a run, saved in its folder."""

from pathlib import Path

import yaml

from fl_lightning._lightning.cli_names import SaveConfigCallback
from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder


class SaveRunConfig(SaveConfigCallback):
    """Saves the configuration of ``fit`` next to its logs and checkpoints, and refuses to overwrite another run.

    The saved configuration starts a new run: it never contains the checkpoint from which this run was resumed.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save the configuration before the model is set up, unless the run is resumed in the same folder."""
        log_dir = trainer.log_dir
        writes_files = trainer.loggers or trainer.checkpoint_callbacks
        if stage != "fit" or log_dir is None or not writes_files:
            return
        folder = RunFolder(Path(log_dir).resolve())
        taken = folder.config.is_file()
        resumed = self.config.ckpt_path is not None and folder.path in Path(self.config.ckpt_path).resolve().parents
        if taken and not resumed:
            raise MisconfigurationError(
                f"{log_dir} already holds a run: choose another folder for the logger, or continue that run with"
                f" --ckpt_path {RunFolder(Path(log_dir)).checkpoint}"
            )
        self.config = self.config.clone()
        self.config.ckpt_path = None
        if not taken:
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the configuration in a separate file if a run is resumed with different settings."""
        log_dir = trainer.log_dir  # read on every rank, because rank zero broadcasts it
        if trainer.current_epoch == 0 or log_dir is None or not trainer.is_global_zero:
            return
        folder = RunFolder(Path(log_dir))
        config = self.parser.dump(self.config, skip_none=False)
        if folder.config.is_file() and yaml.safe_load(folder.config.read_text()) != yaml.safe_load(config):
            changed = folder.config_from_round(trainer.current_epoch + 1)
            changed.write_text(config)
            print(f"The settings differ from those of earlier rounds: see {changed.name} in {folder}", flush=True)
