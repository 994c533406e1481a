"""Preparing a Trainer to run rounds."""

from fl_lightning._lightning.names import (
    Callback,
    Checkpoint,
    DDPStrategy,
    ModelCheckpoint,
    RichProgressBar,
    SingleDeviceStrategy,
    TQDMProgressBar,
    Trainer,
)
from fl_lightning._lightning.server_trainer import save_at_epoch_end, synchronises_batch_norm
from fl_lightning._lightning.tensorboard import tensorboard_loggers
from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.hparams import HyperParameters
from fl_lightning.callbacks.run.layout import TensorBoardLayout
from fl_lightning.callbacks.run.partition_picture import PartitionPicture
from fl_lightning.callbacks.run.progress import RoundProgressBar
from fl_lightning.core.errors import MisconfigurationError


def check_flags(trainer: Trainer) -> None:
    """Reject flags that make no sense for a server; the message says where they belong."""
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        raise MisconfigurationError(
            f"strategy {type(trainer.strategy).__name__} shards or wraps the model, but clients train the whole model:"
            " set trainer.strategy to auto or ddp"
        )
    if trainer.precision not in ("32-true", "bf16-mixed"):
        raise MisconfigurationError(
            f"trainer.precision={trainer.precision}, but the server only evaluates, in 32-true or bf16-mixed:"
            " set client.precision instead"
        )
    for flag, default in (("gradient_clip_val", None), ("accumulate_grad_batches", 1), ("overfit_batches", 0.0)):
        if getattr(trainer, flag) != default:
            raise MisconfigurationError(
                f"trainer.{flag}={getattr(trainer, flag)}, but the server takes no gradient steps:"
                f" set client.{flag} instead"
            )
    if synchronises_batch_norm(trainer):
        raise MisconfigurationError("trainer.sync_batchnorm=True, but every client has its own batches: leave it out")


def add_round_callbacks(trainer: Trainer) -> None:
    """Replace Lightning's default progress bar and checkpoint with ones for rounds; keep those that the user chose.

    TensorBoard gets a picture of the partition, a layout of its charts and the run's hyper-parameters.
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
    if any(tensorboard_loggers(trainer)):
        present = {type(callback) for callback in callbacks}
        callbacks += [kind() for kind in (PartitionPicture, TensorBoardLayout, HyperParameters) if kind not in present]
    trainer.callbacks = callbacks  # type: ignore[attr-defined]


def order_checkpoints(trainer: Trainer) -> None:
    """Write the last round's checkpoint after all others, because it contains their state."""
    save_at_epoch_end(trainer)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    trainer.callbacks = sorted(callbacks, key=lambda callback: isinstance(callback, LastRound))  # type: ignore[attr-defined]


def _is_default(checkpoint: ModelCheckpoint) -> bool:
    """Return whether the checkpoint callback is the one that Lightning adds by default."""
    default = ModelCheckpoint()
    names = ("state_key", "dirpath", "filename", "save_last", "save_top_k", "save_weights_only")
    return all(getattr(checkpoint, name) == getattr(default, name) for name in names)
