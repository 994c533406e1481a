"""Learning rates that depend on the round."""

import math
from typing import Literal

from fl_lightning.client import ClientCallback, Progress
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number


class CosineAnnealing(ClientCallback):
    """η = η_min + ½ (η_max - η_min)(1 + cos(π T_cur / T)), set before every batch; η_max is the optimiser's own rate.

    Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (eq. 2). T_cur is the
    number of epochs completed, including the fraction of the current one. The paper is ambiguous, hence ``horizon``. If
    clients draw their numbers of local epochs, each goes through the same part of the arc in its own number of epochs.

    Args:
        horizon: ``run`` uses one arc over all rounds, T = rounds · local epochs; ``round`` uses one arc per round.
        eta_min: the learning rate at the end.
    """

    def __init__(self, horizon: Literal["run", "round"] = "run", eta_min: float = 0.0) -> None:
        if horizon not in ("run", "round"):
            raise MisconfigurationError(f"horizon={horizon!r}: set horizon of CosineAnnealing to run or round")
        check_number(
            "eta_min", eta_min, at_least=0, reason="it is a learning rate", setting="eta_min of CosineAnnealing"
        )
        self.horizon = horizon
        self.eta_min = eta_min

    def learning_rate(self, rate: float, progress: Progress) -> float:
        """Return the learning rate of this batch."""
        epochs, rounds = self.local_training.epochs_of(self.client, self.round), self.round.num_rounds
        done, total = progress.epochs_done, float(epochs)
        if self.horizon == "run":
            if rounds is None:
                raise MisconfigurationError(
                    "CosineAnnealing over the run needs its length: set trainer.max_epochs, or horizon to round"
                )
            done += self.round.number * epochs
            total *= rounds
        return self.eta_min + 0.5 * (rate - self.eta_min) * (1 + math.cos(math.pi * done / total))


class LearningRateDecay(ClientCallback):
    """η_t = η · factor^t in round t, counted from 0; constant within a round. FedAdp uses 0.995.

    Args:
        factor: factor by which the learning rate is multiplied after every round.
    """

    def __init__(self, factor: float) -> None:
        check_number("factor", factor, above=0, at_most=1, reason="the learning rate decays")
        self.factor = factor

    def learning_rate(self, rate: float, progress: Progress) -> float:
        """Return the learning rate of this round."""
        return rate * self.factor**self.round.number
