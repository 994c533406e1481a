from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.optimizers import check_optimizer, check_scheduler, check_server_optimizer


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(SGD, lr=0.1, momentum=float("nan")), "momentum=nan"),
        (partial(SGD, lr=float("inf")), "lr=inf"),
        (partial(Adam, lr=0.1, eps=float("inf")), "eps=inf"),
    ],
)
def test_settings_that_torch_accepts_although_they_are_not_finite_are_refused(make, name):
    with pytest.raises(MisconfigurationError, match=f"^{name} is not a finite number: set .* in client to one"):
        check_optimizer(make(parameters()), "client")


def test_a_scheduler_with_a_factor_that_is_not_finite_is_refused():
    scheduler = lr_scheduler.StepLR(SGD(parameters(), lr=0.1), step_size=1, gamma=float("nan"))
    with pytest.raises(MisconfigurationError, match=r"^gamma=nan is not a finite number: set gamma of StepLR"):
        check_scheduler(scheduler, "model")


@pytest.mark.parametrize("kind", [lr_scheduler.ReduceLROnPlateau, partial(lr_scheduler.CosineAnnealingLR, T_max=3)])
def test_a_scheduler_may_start_from_infinity_itself(kind):
    check_scheduler(kind(SGD(parameters(), lr=0.1)), "model")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(SGD, lr=-1), "ValueError: Invalid learning rate"),
        (torch.optim.SparseAdam, "RuntimeError: SparseAdam does not support dense gradients"),
        (torch.optim.LBFGS, "TypeError: "),
        (partial(SGD, lr=None), "TypeError: "),
    ],
)
def test_a_server_optimiser_that_cannot_step_is_refused(make, reason):
    with pytest.raises(MisconfigurationError, match=rf"^server.optimizer cannot move a model by a gradient \({reason}"):
        check_server_optimizer(make)


def test_a_function_that_makes_no_optimiser_is_refused():
    class Stepper:
        def step(self) -> None: ...

    with pytest.raises(MisconfigurationError, match=r"returns a Stepper: set it to a class of torch\.optim"):
        check_server_optimizer(lambda _: Stepper())


@pytest.mark.parametrize("make", [partial(SGD, lr=1.0, momentum=0.9), Adam, torch.optim.Adagrad])
def test_usual_server_optimisers_pass(make):
    check_server_optimizer(make)
