"""Ending a run as soon as a metric has reached a target."""

import numpy as np

from fl_lightning._lightning.names import EarlyStopping, LightningModule, Trainer
from fl_lightning.core.metric_names import smaller_is_better


class StopAtTarget(EarlyStopping):
    """An ``EarlyStopping`` that stops at a threshold and for no other reason.

    A value equal to the target reaches it. Neither patience nor a value that is not finite ends the run. A run that was
    killed after its last round trains no further round when it is resumed.

    Args:
        monitor: the metric. Losses, errors and divergences have to fall to the target, all others have to rise to it.
        target: the value to reach.
    """

    def __init__(self, monitor: str, target: float) -> None:
        falls = smaller_is_better(monitor)
        # EarlyStopping needs a value beyond its threshold, so the threshold is the 32-bit number before the target.
        before = np.nextafter(np.float32(target), np.float32(np.inf if falls else -np.inf))
        super().__init__(
            monitor,
            mode="min" if falls else "max",
            patience=2**62,
            check_finite=False,
            stopping_threshold=float(before),
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a resumed run that has already reached the target."""
        if self.stopping_reason_message is not None:
            trainer.should_stop = True
