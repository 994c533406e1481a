"""How far a client's optimiser steps reach."""

from collections.abc import Sequence

from torch.optim import SGD, Optimizer

from fl_lightning.core.errors import MisconfigurationError


class EffectiveSteps:
    """Accumulates Σ_s Σ_{t≥s} η_t μ^{t-s}: how far gradients of 1 at every step move the model.

    With plain SGD it is η times the number of steps. With momentum μ, a gradient keeps moving the model in all later
    steps. FedNova calls it η‖a‖₁ and divides updates by it; SCAFFOLD divides by it to recover the mean gradient.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._lag = 0.0

    def add(self, optimizer: Optimizer) -> None:
        """Count the step that the optimiser is about to take: lag ← 1 + μ lag, total ← total + η lag."""
        group = optimizer.param_groups[0]
        self._lag = 1.0 + group["momentum"] * self._lag
        self.total += group["lr"] * self._lag


def check_plain_sgd(optimizers: Sequence[Optimizer], algorithm: str) -> None:
    """Refuse clients whose update is not a sum of gradients, as only one ``torch.optim.SGD`` guarantees.

    Args:
        optimizers: those of a client.
        algorithm: the name of the algorithm that needs it, for the error.
    """
    if len(optimizers) != 1 or not isinstance(optimizers[0], SGD):
        names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        raise MisconfigurationError(
            f"{algorithm} recovers the mean gradient from the model's move, which {names} does not allow:"
            " use one torch.optim.SGD at the clients, or another aggregator"
        )
    groups = optimizers[0].param_groups
    for group in groups:
        if group["nesterov"] or group["dampening"]:
            raise MisconfigurationError(
                f"{algorithm} with SGD(nesterov={group['nesterov']}, dampening={group['dampening']}):"
                " it works with plain momentum only, so turn both off"
            )
        if any(group[key] != groups[0][key] for key in ("lr", "momentum")):
            raise MisconfigurationError(
                f"{algorithm} with different learning rates or momenta in one optimiser: use one parameter group"
            )
