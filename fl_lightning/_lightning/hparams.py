"""Hyper-parameters of modules, beyond ``save_hyperparameters``."""

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
from pytorch_lightning.loggers import TensorBoardLogger

_ATTRIBUTES = ("_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams")


def adopt_hyper_parameters(wrapper: LightningModule, module: LightningModule) -> None:
    """Give ``wrapper`` the hyper-parameters of ``module``, as if it had saved them itself."""
    for attribute in _ATTRIBUTES:
        if hasattr(module, attribute):
            setattr(wrapper, attribute, getattr(module, attribute))


def made_by_command_line() -> bool:
    """Return whether a LightningCLI is instantiating the module and supplies descriptions of its arguments to save."""
    return _given_hyperparameters.get() is not None


def without_placeholder_metric(trainer: Trainer) -> None:
    """Stop TensorBoard loggers from writing ``hp_metric``, which would occupy the HParams tab."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger._default_hp_metric = False
