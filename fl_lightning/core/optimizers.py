"""Checks of optimisers and schedulers that torch makes too late or not at all."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fl_lightning.core.arguments import kept_arguments
from fl_lightning.core.errors import MisconfigurationError


def check_optimizer(optimizer: Optimizer, setting: str) -> None:
    """Reject settings of an optimiser that are not finite: a momentum of nan, for example, passes torch's checks."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            _check_finite(name, value, f"{name} of {type(optimizer).__name__} in {setting}")


def check_scheduler(scheduler: Any, setting: str) -> None:
    """Reject settings of a scheduler that are not finite."""
    for name, value in kept_arguments(scheduler).items():
        _check_finite(name, value, f"{name} of {type(scheduler).__name__} in {setting}")


def make_server_optimizer(
    make: Callable[[Iterable[nn.Parameter]], Optimizer], parameters: Sequence[nn.Parameter]
) -> Optimizer:
    """Make the server's optimiser, or raise an error if it cannot move a model by a gradient.

    The optimiser first takes a step on a small matrix, because some optimisers, such as LBFGS, need more than a
    gradient.

    Args:
        make: makes the optimiser from parameters.
        parameters: the parameters of the global model.
    """
    matrix = nn.Parameter(torch.zeros(2, 2))
    matrix.grad = torch.zeros(2, 2)
    try:
        make([matrix]).step()
        optimizer = make(parameters)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise MisconfigurationError(
            f"server.optimizer cannot move a model by a gradient ({type(error).__name__}: {reason}):"
            " change its arguments, or use SGD or Adam"
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise MisconfigurationError(
            f"server.optimizer returns a {type(optimizer).__name__}: set it to a class of torch.optim"
        )
    check_optimizer(optimizer, "server.optimizer")
    return optimizer


def _check_finite(name: str, value: Any, setting: str) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise MisconfigurationError(f"{name}={value} is not a finite number: set {setting} to one")
