"""Learning rates that know the round."""

import math
from typing import Any, Literal

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.local import ClientCallback


class CosineAnnealing(ClientCallback):
    """η = η_min + ½ (η_max - η_min)(1 + cos(π T_cur / T)), set before every batch; η_max is the optimiser's own.

    Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (eq. 2). T_cur is the
    number of epochs done, with the fraction of the current one. The paper can be read two ways, hence ``horizon``.

    Args:
        horizon: ``run``: one arc over all rounds, T = rounds · local epochs; ``round``: an arc in every local training.
        eta_min: the learning rate at the end.
    """

    def __init__(self, horizon: Literal["run", "round"] = "run", eta_min: float = 0.0) -> None:
        if horizon not in ("run", "round"):
            raise MisconfigurationException(f"horizon={horizon!r} is not one of run, round")
        self.horizon = horizon
        self.eta_min = eta_min

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first batch of a client."""
        if self.horizon == "run" and self.round.num_rounds is None:
            raise MisconfigurationException(
                "CosineAnnealing over the run needs its length: set trainer.max_epochs, or horizon to round"
            )
        self.eta_max = [[group["lr"] for group in optimizer.param_groups] for optimizer in trainer.optimizers]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before every batch."""
        epochs = self.local_training.epochs
        done = trainer.current_epoch + batch_idx / trainer.num_training_batches
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
        factor: what a round leaves of the learning rate.
    """

    def __init__(self, factor: float) -> None:
        if not 0 < factor <= 1:
            raise MisconfigurationException(f"factor={factor}, but the learning rate decays: set it in (0, 1]")
        self.factor = factor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first batch of a client."""
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= self.factor**self.round.number
