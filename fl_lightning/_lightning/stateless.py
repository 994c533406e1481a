"""Running a module's training step without a Trainer, as a function of parameters, buffers and a batch."""

import importlib
from functools import cache
from typing import Any, NoReturn

from torch.optim import Optimizer

from fl_lightning._lightning.client_module import client_copy
from fl_lightning._lightning.names import LightningModule
from fl_lightning._lightning.package import PACKAGE

#: what a module can read only with a Trainer
_TRAINER_ATTRIBUTES = ("trainer", "current_epoch", "global_step", "logger", "loggers", "optimizers", "lr_schedulers")


class NeedsTrainerError(Exception):
    """Raised if a training step reads something that only a Trainer provides."""


def stateless_copy(module: LightningModule) -> LightningModule:
    """Copy a module in training mode. The copy ignores ``self.log`` and refuses access to a Trainer."""
    copy = client_copy(module)
    copy.train()
    copy.log = copy.log_dict = _ignore  # type: ignore[method-assign]
    copy.__class__ = _without_trainer(type(copy))  # type: ignore[arg-type]
    return copy


def configured_optimizers(module: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """Return the optimisers and scheduler configs of ``configure_optimizers``, in whatever form it returns them."""
    core = importlib.import_module(f"{PACKAGE}.core.optimizer")
    optimizers, schedulers, monitor = core._configure_optimizers(module.configure_optimizers())
    return optimizers, core._configure_schedulers_automatic_opt(schedulers, monitor)


@cache
def _without_trainer(module_class: type[LightningModule]) -> type[LightningModule]:
    names: dict[str, Any] = {name: _refusing(name) for name in _TRAINER_ATTRIBUTES}
    names["__module__"] = module_class.__module__
    names["__qualname__"] = f"_without_trainer.<locals>.{module_class.__qualname__}"
    return type(module_class.__name__, (_NoRegistration, module_class), names)


class _NoRegistration:
    """Keeps the user's ``__init_subclass__``, which may register the class, from running."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Do nothing."""


def _refusing(name: str) -> property:
    def read(self: LightningModule) -> NoReturn:
        raise NeedsTrainerError(f"reads self.{name}")

    return property(read)


def _ignore(*_: Any, **__: Any) -> None:
    pass
