"""Hyper-parameters of modules, beyond ``save_hyperparameters``."""

import importlib

from fl_lightning._lightning.names import LightningModule, TensorBoardLogger, Trainer
from fl_lightning._lightning.package import PACKAGE

_ATTRIBUTES = ("_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams")


def adopt_hyper_parameters(wrapper: LightningModule, module: LightningModule) -> None:
    """Give ``wrapper`` the hyper-parameters of ``module``, as if it had saved them itself."""
    for attribute in _ATTRIBUTES:
        if hasattr(module, attribute):
            setattr(wrapper, attribute, getattr(module, attribute))


def made_by_command_line() -> bool:
    """Return whether a LightningCLI is instantiating the module and supplies descriptions of its arguments to save."""
    mixin = importlib.import_module(f"{PACKAGE}.core.mixins.hparams_mixin")
    return mixin._given_hyperparameters.get() is not None


def without_placeholder_metric(trainer: Trainer) -> None:
    """Stop TensorBoard loggers from writing ``hp_metric``, which would occupy the HParams tab."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger._default_hp_metric = False
