"""What the server needs from its own Trainer beyond the public interface."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fl_lightning._lightning.names import DDPStrategy, LightningModule, ModelCheckpoint, ModelSummary, Trainer


def trainer_of(module: LightningModule) -> Trainer | None:
    """Return the module's Trainer, or None; ``module.trainer`` raises an error instead."""
    return module._trainer


def keep_samplers(trainer: Trainer) -> None:
    """Keep the samplers of all loaders, because a distributed sampler repeats samples to give ranks equally many."""
    trainer._accelerator_connector.use_distributed_sampler = False


def leave_model_unwrapped(trainer: Trainer) -> None:
    """Keep DDP's process group but not its wrapper, because ranks exchange updates instead of gradients."""
    if isinstance(trainer.strategy, DDPStrategy):
        trainer.strategy.configure_ddp = lambda: None  # type: ignore[method-assign]


def synchronises_batch_norm(trainer: Trainer) -> bool:
    """Return whether the Trainer was given ``sync_batchnorm=True``."""
    return trainer._accelerator_connector._layer_sync is not None


def save_at_epoch_end(trainer: Trainer) -> None:
    """Write checkpoints at the end of a round, never at the end of its validation.

    A run that stopped early could not be resumed from a checkpoint written during validation. A callback that saves
    every n steps saves every n rounds instead, so that it too waits for the round's validation.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        if callback._every_n_train_steps:
            callback._every_n_epochs, callback._every_n_train_steps = callback._every_n_train_steps, 0
        if callback._save_on_train_epoch_end is None:
            callback._save_on_train_epoch_end = True


def skip_stale_scores(trainer: Trainer) -> None:
    """Let checkpoints that monitor validation skip a round without it, because the scores are from an earlier round."""
    if not trainer.enable_validation:
        return
    stale = evaluated_metrics(trainer)
    for callback in trainer.checkpoint_callbacks:
        monitor = getattr(callback, "monitor", None)
        if monitor is not None and (monitor in stale or monitor not in trainer.callback_metrics):
            assert isinstance(callback, ModelCheckpoint)
            callback._last_global_step_saved = trainer.global_step  # as if it had already saved this round


def summarise(trainer: Trainer, unwrap: Callable[[LightningModule], LightningModule]) -> None:
    """Let model summaries describe ``unwrap(pl_module)`` instead of ``pl_module``."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelSummary):
            callback._summary = partial(_summary, callback, unwrap)  # type: ignore[method-assign]


def _summary(
    callback: ModelSummary,
    unwrap: Callable[[LightningModule], LightningModule],
    trainer: Trainer,
    pl_module: LightningModule,
) -> Any:
    return type(callback)._summary(callback, trainer, unwrap(pl_module))


def evaluated_metrics(trainer: Trainer) -> list[str]:
    """Return the names in ``callback_metrics`` that were logged during the validation of a fit."""
    results: Any = trainer.fit_loop.epoch_loop.val_loop._results
    logged = {item.meta.name for item in results.values()}
    return [name for name in trainer.callback_metrics if _without_suffix(name) in logged or name in logged]


def _without_suffix(name: str) -> str:
    """Return the name without the suffix that Lightning adds for several loaders or for ``on_step``."""
    return name.partition("/dataloader_idx_")[0].removesuffix("_epoch")
