"""Public names of the LightningCLI in use. They have their own file, because they import jsonargparse."""

from typing import TYPE_CHECKING

from fl_lightning._lightning.package import PACKAGE

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.cli import (
        ArgsType,
        LightningArgumentParser,
        LightningCLI,
        LRSchedulerCallable,
        OptimizerCallable,
        SaveConfigCallback,
    )
else:
    from pytorch_lightning.cli import (
        ArgsType,
        LightningArgumentParser,
        LightningCLI,
        LRSchedulerCallable,
        OptimizerCallable,
        SaveConfigCallback,
    )

__all__ = [
    "ArgsType",
    "LRSchedulerCallable",
    "LightningArgumentParser",
    "LightningCLI",
    "OptimizerCallable",
    "SaveConfigCallback",
]
