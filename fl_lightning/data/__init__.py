"""Data: sources, partitions (who owns what), selections (who takes part)."""

from fl_lightning.data.datamodule import ClientDatasets, FederatedDataModule
from fl_lightning.data.digits import Digits
from fl_lightning.data.partition import IID, ClassesPerClient, Dirichlet, Partition
from fl_lightning.data.selection import AllClients, RandomClients, Selection, SequentialClients

__all__ = [
    "IID",
    "AllClients",
    "ClassesPerClient",
    "ClientDatasets",
    "Digits",
    "Dirichlet",
    "FederatedDataModule",
    "Partition",
    "RandomClients",
    "Selection",
    "SequentialClients",
]
