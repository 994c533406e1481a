"""Learning rates that depend on the round."""

import math
from typing import Any, Literal

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError


class CosineAnnealing(ClientCallback):
    """η = η_min + ½ (η_max - η_min)(1 + cos(π T_cur / T)), set before every batch; η_max is the optimiser's own rate.

    Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (eq. 2). T_cur is the
    number of epochs completed, including the fraction of the current one. The paper is ambiguous, hence ``horizon``.

    Args:
        horizon: ``run`` uses one arc over all rounds, T = rounds · local epochs; ``round`` uses one arc per round.
        eta_min: the learning rate at the end.
    """

    def __init__(self, horizon: Literal["run", "round"] = "run", eta_min: float = 0.0) -> None:
        if horizon not in ("run", "round"):
            raise MisconfigurationError(f"horizon={horizon!r}: set horizon of CosineAnnealing to run or round")
        self.horizon = horizon
        self.eta_min = eta_min

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read η_max from the client's optimisers."""
        if self.horizon == "run" and self.round.num_rounds is None:
            raise MisconfigurationError(
                "CosineAnnealing over the run needs its length: set trainer.max_epochs, or horizon to round"
            )
        self.eta_max = [[group["lr"] for group in optimizer.param_groups] for optimizer in trainer.optimizers]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the learning rate of this batch."""
        epochs = self.local_training.epochs
        done = trainer.current_epoch % epochs + batch_idx / trainer.num_training_batches
        total = float(epochs)
        if self.horizon == "run":
            assert self.round.num_rounds is not None
            done += self.round.number * epochs
            total *= self.round.num_rounds
        for optimizer, rates in zip(trainer.optimizers, self.eta_max, strict=True):
            for group, eta_max in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = self.eta_min + 0.5 * (eta_max - self.eta_min) * (1 + math.cos(math.pi * done / total))


class LearningRateDecay(ClientCallback):
    """η_t = η · factor^t in round t, counted from 0; constant within a round. FedAdp uses 0.995.

    Args:
        factor: factor by which the learning rate is multiplied after every round.
    """

    def __init__(self, factor: float) -> None:
        if not 0 < factor <= 1:
            raise MisconfigurationError(f"factor={factor}, but the learning rate decays: set it in (0, 1]")
        self.factor = factor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the learning rate of this round."""
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= self.factor**self.round.number
