"""Preparing a Trainer to run rounds."""

from collections.abc import Sequence

from fl_lightning._lightning.names import (
    BatchSizeFinder,
    Callback,
    Checkpoint,
    DDPStrategy,
    LearningRateFinder,
    LightningModule,
    ModelCheckpoint,
    ProgressBar,
    RichProgressBar,
    SingleDeviceStrategy,
    StochasticWeightAveraging,
    TQDMProgressBar,
    Trainer,
    rank_zero_warn,
)
from fl_lightning._lightning.server_trainer import save_at_epoch_end, summarise, synchronises_batch_norm
from fl_lightning._lightning.tensorboard import tensorboard_loggers
from fl_lightning._lightning.training_step import BATCH_HOOKS
from fl_lightning.callbacks.round_callback import RoundCallback
from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.hparams import HyperParameters
from fl_lightning.callbacks.run.layout import TensorBoardLayout
from fl_lightning.callbacks.run.partition_picture import PartitionPicture
from fl_lightning.callbacks.run.progress import RoundProgressBar
from fl_lightning.callbacks.run.provenance import Provenance
from fl_lightning.callbacks.run.rich_progress import RichRoundProgressBar
from fl_lightning.callbacks.run.weight_averaging import average_statistics
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule, RoundRunner

_VALIDATION_HOOKS = tuple(hook for hook in dir(Callback) if hook.startswith("on_validation_"))


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
    for flag in ("max_epochs", "max_steps"):
        if getattr(trainer, flag) == 0:
            raise MisconfigurationError(f"trainer.{flag}=0, so there is no round: set it to 1 or more, or leave it out")
    if trainer.check_val_every_n_epoch is not None:
        name = "check_val_every_n_epoch"
        check_number(name, trainer.check_val_every_n_epoch, at_least=1, setting=f"trainer.{name}")
    belongs_to_client = {"gradient_clip_val": None, "accumulate_grad_batches": 1, "overfit_batches": 0.0}
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]
        belongs_to_client["limit_train_batches"] = 1.0
    for flag, default in belongs_to_client.items():
        if getattr(trainer, flag) != default:
            raise MisconfigurationError(
                f"trainer.{flag}={getattr(trainer, flag)}, but it is the clients that train on batches:"
                f" set client.{flag} instead"
            )
    if synchronises_batch_norm(trainer):
        raise MisconfigurationError("trainer.sync_batchnorm=True, but every client has its own batches: leave it out")
    interval = getattr(trainer, "val_check_interval", 1.0)  # missing if it is a duration
    if interval != 1.0 and trainer.check_val_every_n_epoch is not None:
        raise MisconfigurationError(
            f"trainer.val_check_interval={interval}, but clients do not validate while they train:"
            " set trainer.check_val_every_n_epoch to validate after every n rounds"
        )


def refuse_tuners(trainer: Trainer) -> None:
    """Reject Lightning's tuners, which would vary the server's settings instead of the clients'."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LearningRateFinder):
            raise MisconfigurationError(
                "LearningRateFinder (Tuner.lr_find) would vary the server's learning rate, but clients take the"
                " gradient steps: run it on the module itself, Tuner(Trainer()).lr_find(module, datamodule=source)"
            )
        if isinstance(callback, BatchSizeFinder):
            raise MisconfigurationError(
                "BatchSizeFinder (Tuner.scale_batch_size) would vary the server's batch, which is the cohort: set"
                " client.batch_size, or run it on the module itself,"
                " Tuner(Trainer()).scale_batch_size(module, datamodule=source)"
            )


def refuse_client_callbacks(trainer: Trainer) -> None:
    """Reject callbacks of the server's Trainer that belong to the clients."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ClientCallback):
            raise MisconfigurationError(
                f"{type(callback).__name__} is a callback of clients, but it is among trainer.callbacks:"
                " move it to client.callbacks"
            )


def refuse_round_callbacks(callbacks: Sequence[Callback]) -> None:
    """Reject callbacks of clients that belong to the server's Trainer: a client has no rounds."""
    for callback in callbacks:
        of_run = type(callback).__module__.startswith(f"{__package__}.")
        if of_run or isinstance(callback, RoundCallback | RoundRunner):
            raise MisconfigurationError(
                f"{type(callback).__name__} is a callback of the server, but it is among client.callbacks:"
                " move it to trainer.callbacks"
            )


def belongs_to_clients(callback: Callback) -> bool:
    """Return whether a callback that the module configures runs on the clients instead of the server.

    It does if it has hooks for batches or optimiser steps of training, because the server's only batch is a list of
    clients. The hooks that Lightning's own callbacks have do not count: ModelCheckpoint, for example, has some.
    """
    if isinstance(callback, ClientCallback):
        return True
    if isinstance(callback, RoundCallback | Checkpoint | ProgressBar):
        return False
    if not any(_is_user_defined(callback, hook) for hook in BATCH_HOOKS):
        return False
    for hook in _VALIDATION_HOOKS:
        if _is_user_defined(callback, hook):
            rank_zero_warn(
                f"{type(callback).__name__} has hooks for training batches, so it runs on clients, which do not"
                f" validate: move {hook} into a callback of its own"
            )
    return True


def _is_user_defined(callback: Callback, hook: str) -> bool:
    """Return whether a hook is defined outside Lightning."""
    package = Callback.__module__.partition(".")[0]
    return getattr(getattr(callback, hook), "__module__", "").partition(".")[0] != package


def add_round_callbacks(trainer: Trainer) -> None:
    """Replace Lightning's progress bars and default checkpoint with ones for rounds; the user's own classes stay.

    The run records its provenance. TensorBoard gets a picture of the partition, a layout of its charts and the
    run's hyper-parameters.
    """
    callbacks: list[Callback] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if type(callback) is TQDMProgressBar:
            callback = RoundProgressBar(refresh_rate=callback.refresh_rate)
        elif type(callback) is RichProgressBar:
            callback = RichRoundProgressBar.like(callback)
        elif type(callback) is ModelCheckpoint and _is_default(callback):
            continue
        callbacks.append(callback)
    wants_checkpoints = any(isinstance(callback, Checkpoint) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    if wants_checkpoints and not any(isinstance(callback, LastRound) for callback in callbacks):
        callbacks.append(LastRound())
    present = {type(callback) for callback in callbacks}
    if Provenance not in present:
        callbacks.append(Provenance())
    if any(tensorboard_loggers(trainer)):
        callbacks += [kind() for kind in (PartitionPicture, TensorBoardLayout, HyperParameters) if kind not in present]
    trainer.callbacks = callbacks  # type: ignore[attr-defined]


def order_checkpoints(trainer: Trainer) -> None:
    """Write the last round's checkpoint after all others, because it contains their state."""
    save_at_epoch_end(trainer)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    trainer.callbacks = sorted(callbacks, key=lambda callback: isinstance(callback, LastRound))  # type: ignore[attr-defined]


def adapt_callbacks(trainer: Trainer) -> None:
    """Make model summaries describe the user's module, and weight averaging include its statistics."""
    summarise(trainer, _unwrap)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StochasticWeightAveraging):
            average_statistics(callback)


def _unwrap(pl_module: LightningModule) -> LightningModule:
    return pl_module.module if isinstance(pl_module, FederatedModule) else pl_module


def _is_default(checkpoint: ModelCheckpoint) -> bool:
    """Return whether the checkpoint callback is the one that Lightning adds by default."""
    default = ModelCheckpoint()
    names = ("state_key", "dirpath", "filename", "save_last", "save_top_k", "save_weights_only")
    return all(getattr(checkpoint, name) == getattr(default, name) for name in names)


def federated_data(trainer: Trainer) -> FederatedDataModule:
    """Return the data of a run, or reject it if it is not divided among clients."""
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise MisconfigurationError(
            f"the data is a {type(data).__name__}: wrap it, FederatedDataModule(source, partition=..., selection=...)"
        )
    return data
