"""A picture of the partition in TensorBoard."""

from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.tensorboard import tensorboard_loggers
from fl_lightning.callbacks.run.decoration import decoration
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.ownership import Ownership


class PartitionPicture(Callback):
    """Adds a picture of the partition to TensorBoard at the start of a run, as the image ``partition``.

    The server adds this callback automatically if there is a TensorBoardLogger. ``fl-lightning partition`` draws the
    same picture.
    """

    @decoration
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture, unless the run is resumed and has it already."""
        if trainer.current_epoch > 0 or not trainer.is_global_zero or not any(tensorboard_loggers(trainer)):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, FederatedDataModule)
        from fl_lightning.data.ownership.picture import partition_image

        image = partition_image(Ownership.of(data))
        for logger in tensorboard_loggers(trainer):
            logger.experiment.add_image("partition", image, global_step=0, dataformats="HWC")
