"""The server's default optimiser."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ServerOptimizer(Optimizer):
    """Copies the aggregate into the global model, bit for bit.

    Users see the name of this class, for example in ``trainer.optimizers``.

    SGD with learning rate 1 on ``p - target`` would round: p - (p - target) is not quite target.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, defaults={"lr": 1.0})
        self._targets: list[Tensor] = []

    def aim_at(self, targets: Iterable[Tensor]) -> None:
        """Set the values that the next step copies, in the order of the parameters."""
        self._targets = list(targets)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Copy the targets into the parameters."""
        if closure is not None:
            closure()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter, target in zip(parameters, self._targets, strict=True):
            parameter.copy_(target)
