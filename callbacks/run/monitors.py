"""Callbacks of the server's Trainer that monitor a metric or a learning rate."""

from collections.abc import Collection

from fl_lightning._lightning.names import (
    Callback,
    Checkpoint,
    EarlyStopping,
    LearningRateMonitor,
    Trainer,
    rank_zero_info,
)
from fl_lightning.core.distributed import gather_objects
from fl_lightning.core.errors import MisconfigurationError


def explain_client_metrics(trainer: Trainer, validated: Collection[str], logged: Collection[str]) -> None:
    """Reject a callback that monitors a metric that only the clients log; the message says how to log it.

    Args:
        trainer: the server's Trainer, at the end of a round.
        validated: the metrics that validation logs.
        logged: the metrics that this rank's clients log.
    """
    known = {*trainer.callback_metrics, *validated}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        monitor = getattr(callback, "monitor", None) if isinstance(callback, Checkpoint | EarlyStopping) else None
        if monitor is None or monitor in known or not getattr(callback, "strict", True):
            continue
        if monitor in gather_objects(list(logged), trainer.lightning_module.device):
            raise MisconfigurationError(
                f"{type(callback).__name__} monitors {monitor!r}, which only the clients log:"
                f" set client.log_metrics to [{monitor}], and the run logs their mean"
            )


def remove_learning_rate_monitor(trainer: Trainer) -> None:
    """Remove ``LearningRateMonitor``, which would show the optimiser that copies the aggregate, with a rate of 1."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    kept = [callback for callback in callbacks if not isinstance(callback, LearningRateMonitor)]
    if len(kept) < len(callbacks):
        rank_zero_info("LearningRateMonitor was removed: the run logs the clients' rate as train/learning_rate")
        trainer.callbacks = kept  # type: ignore[attr-defined]
