"""Public names of the Lightning that is in use. All other modules import them from here."""

from typing import TYPE_CHECKING

from fl_lightning._lightning.package import PACKAGE

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.accelerators import CUDAAccelerator
    from lightning.pytorch.callbacks import (
        BatchSizeFinder,
        Checkpoint,
        EarlyStopping,
        LearningRateFinder,
        LearningRateMonitor,
        ModelCheckpoint,
        ModelSummary,
        ProgressBar,
        RichProgressBar,
        StochasticWeightAveraging,
        Timer,
        TQDMProgressBar,
    )
    from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.profilers import PassThroughProfiler
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.combined_loader import CombinedLoader
    from lightning.pytorch.utilities.compile import to_uncompiled
    from lightning.pytorch.utilities.exceptions import SIGTERMException
    from lightning.pytorch.utilities.model_helpers import is_overridden
    from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
    from lightning.pytorch.utilities.types import OptimizerLRScheduler
else:
    from lightning_fabric.plugins.environments import LightningEnvironment
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    from pytorch_lightning.accelerators import CUDAAccelerator
    from pytorch_lightning.callbacks import (
        BatchSizeFinder,
        Checkpoint,
        EarlyStopping,
        LearningRateFinder,
        LearningRateMonitor,
        ModelCheckpoint,
        ModelSummary,
        ProgressBar,
        RichProgressBar,
        StochasticWeightAveraging,
        Timer,
        TQDMProgressBar,
    )
    from pytorch_lightning.callbacks.progress.tqdm_progress import Tqdm
    from pytorch_lightning.loggers import TensorBoardLogger
    from pytorch_lightning.loggers.logger import DummyLogger
    from pytorch_lightning.plugins.io import TorchCheckpointIO
    from pytorch_lightning.plugins.precision import Precision
    from pytorch_lightning.profilers import PassThroughProfiler
    from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
    from pytorch_lightning.utilities.combined_loader import CombinedLoader
    from pytorch_lightning.utilities.compile import to_uncompiled
    from pytorch_lightning.utilities.exceptions import SIGTERMException
    from pytorch_lightning.utilities.model_helpers import is_overridden
    from pytorch_lightning.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
    from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
    from pytorch_lightning.utilities.types import OptimizerLRScheduler

__all__ = [
    "BatchSizeFinder",
    "CUDAAccelerator",
    "Callback",
    "Checkpoint",
    "CombinedLoader",
    "DDPStrategy",
    "DummyLogger",
    "EarlyStopping",
    "LearningRateFinder",
    "LearningRateMonitor",
    "LightningDataModule",
    "LightningEnvironment",
    "LightningModule",
    "ModelCheckpoint",
    "ModelSummary",
    "OptimizerLRScheduler",
    "PassThroughProfiler",
    "Precision",
    "ProgressBar",
    "RichProgressBar",
    "SIGTERMException",
    "SingleDeviceStrategy",
    "StochasticWeightAveraging",
    "TQDMProgressBar",
    "TensorBoardLogger",
    "Timer",
    "TorchCheckpointIO",
    "Tqdm",
    "Trainer",
    "is_overridden",
    "is_param_in_hook_signature",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "to_uncompiled",
]
