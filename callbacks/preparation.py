"""What a Trainer needs before it can run rounds."""

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Checkpoint, ModelCheckpoint, RichProgressBar, TQDMProgressBar
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.hyperparameters import HyperParameters
from fl_lightning.callbacks.layout import TensorBoardLayout
from fl_lightning.callbacks.partition import PartitionPicture
from fl_lightning.callbacks.progress import RoundProgressBar


def check_flags(trainer: Trainer) -> None:
    """Refuses flags that make no sense for a server, and says where they belong."""
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        raise MisconfigurationException(
            f"strategy {type(trainer.strategy).__name__} shards or wraps the model, but a client trains it whole:"
            " set trainer.strategy to auto or ddp"
        )
    if trainer.precision not in ("32-true", "bf16-mixed"):
        raise MisconfigurationException(
            f"trainer.precision={trainer.precision}, but the server only evaluates, in 32-true or bf16-mixed:"
            " set client.precision instead"
        )
    for flag, default in (("gradient_clip_val", None), ("accumulate_grad_batches", 1), ("overfit_batches", 0.0)):
        if getattr(trainer, flag) != default:
            raise MisconfigurationException(
                f"trainer.{flag}={getattr(trainer, flag)}, but the server takes no gradient steps:"
                f" set client.{flag} instead"
            )
    if trainer._accelerator_connector._layer_sync is not None:
        raise MisconfigurationException(
            "trainer.sync_batchnorm=True, but every client has its own batches: leave it out"
        )


def add_round_callbacks(trainer: Trainer) -> None:
    """Puts Lightning's default progress bar and checkpoint into terms of rounds; what the user chose stays.

    TensorBoard gets a picture of the partition, an arrangement of its charts and the run's hyper-parameters.
    """
    callbacks: list[Callback] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if type(callback) in (TQDMProgressBar, RichProgressBar):
            callback = RoundProgressBar(refresh_rate=getattr(callback, "refresh_rate", 1))
        elif type(callback) is ModelCheckpoint and _is_default(callback):
            continue
        callbacks.append(callback)
    wants_checkpoints = any(isinstance(callback, Checkpoint) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    if wants_checkpoints and not any(isinstance(callback, LastRound) for callback in callbacks):
        callbacks.append(LastRound())
    if any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers):
        there = {type(callback) for callback in callbacks}
        callbacks += [kind() for kind in (PartitionPicture, TensorBoardLayout, HyperParameters) if kind not in there]
    trainer.callbacks = callbacks  # type: ignore[attr-defined]


def order_checkpoints(trainer: Trainer) -> None:
    """Lets the last round's checkpoint be written after all others, whose state it contains.

    All are written at the end of a round, never at the end of its validation: from there a run that stopped early could
    not be resumed.
    """
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback._save_on_train_epoch_end is None:
            callback._save_on_train_epoch_end = True
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    trainer.callbacks = sorted(callbacks, key=lambda callback: isinstance(callback, LastRound))  # type: ignore[attr-defined]


def _is_default(checkpoint: ModelCheckpoint) -> bool:
    """Whether it is as Lightning adds it by itself."""
    default = ModelCheckpoint()
    names = ("state_key", "dirpath", "filename", "save_last", "save_top_k", "save_weights_only")
    return all(getattr(checkpoint, name) == getattr(default, name) for name in names)
