"""Hyper-parameters: taking over those of another module, and what was given to save them."""

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers import TensorBoardLogger

_ATTRIBUTES = ("_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams")


def adopt_hyper_parameters(wrapper: LightningModule, module: LightningModule) -> None:
    """Give ``wrapper`` the hyper-parameters of ``module``, as if it had saved them itself."""
    for attribute in _ATTRIBUTES:
        if hasattr(module, attribute):
            setattr(wrapper, attribute, getattr(module, attribute))


def without_placeholder_metric(trainer: Trainer) -> None:
    """Stop TensorBoard loggers from writing ``hp_metric``, which would take the HParams tab."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger._default_hp_metric = False
