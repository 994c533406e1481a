"""Federated learning on PyTorch Lightning: any LightningModule becomes federated."""

from fl_lightning.data import FederatedDataModule
from fl_lightning.local import LocalTraining
from fl_lightning.module import FederatedModule
from fl_lightning.update import ClientUpdate

__version__ = "0.1.0"

__all__ = ["ClientUpdate", "FederatedDataModule", "FederatedModule", "LocalTraining", "__version__"]
