"""Who owns what, in TensorBoard."""

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers import TensorBoardLogger

from fl_lightning.data import FederatedDataModule
from fl_lightning.data.ownership import Ownership


class PartitionPicture(Callback):
    """Puts a picture of the partition into TensorBoard at the start of a run: the image ``partition``.

    The server adds it by itself where there is a TensorBoardLogger. It is the picture of ``fl-lightning partition``.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first round. A resumed run has its picture already."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not loggers or trainer.current_epoch > 0 or not trainer.is_global_zero:
            return
        assert isinstance(data, FederatedDataModule)
        from fl_lightning.partition_picture import partition_image

        image = partition_image(Ownership.of(data))
        for logger in loggers:
            logger.experiment.add_image("partition", image, global_step=0, dataformats="HWC")
