"""The effective length of a client's optimiser steps."""

from collections.abc import Sequence

from torch.optim import SGD, Optimizer

from fl_lightning.core.errors import MisconfigurationError


class EffectiveSteps:
    """Accumulates Σ_s Σ_{t≥s} η_t μ^{t-s}: how far a gradient of 1 at every step would move the model.

    With plain SGD this is η times the number of steps. With momentum μ, a gradient keeps moving the model in all later
    steps. FedNova calls the sum η‖a‖₁ and divides updates by it; SCAFFOLD divides by it to recover the mean gradient.
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
    """Reject clients whose update may not be a sum of gradients, which only a single ``torch.optim.SGD`` guarantees.

    Args:
        optimizers: the client's optimisers.
        algorithm: name of the algorithm, for the error message.
    """
    if len(optimizers) != 1 or not isinstance(optimizers[0], SGD):
        names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        raise MisconfigurationError(
            f"{algorithm} recovers the mean gradient from the model's move, which {names} does not allow:"
            " use one torch.optim.SGD on the clients, or another aggregator"
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
