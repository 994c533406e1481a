"""Federated learning on PyTorch Lightning: any LightningModule becomes federated."""

from fl_lightning.client import LocalTraining
from fl_lightning.core.update import ClientUpdate
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule

__version__ = "0.2.0"

__all__ = ["ClientUpdate", "FederatedDataModule", "FederatedModule", "LocalTraining", "__version__"]
