"""Data: sources, partitions (which samples each client owns) and selections (which clients take part in a round)."""

from fl_lightning.data.datamodule import ClientDatasets, FederatedDataModule
from fl_lightning.data.partitions import (
    IID,
    ByColumn,
    ByList,
    ClassesPerClient,
    Dirichlet,
    FavouriteClass,
    FreshDraw,
    MixedNodes,
    Partition,
    RedrawnPartition,
    Shards,
)
from fl_lightning.data.selection import AllClients, PoissonClients, RandomClients, Selection, SequentialClients
from fl_lightning.data.sources import (
    CIFAR10,
    MNIST,
    Digits,
    FashionMNIST,
    ImageFolder,
    Sentiment140,
    TinyImageNet,
)

__all__ = [
    "CIFAR10",
    "IID",
    "MNIST",
    "AllClients",
    "ByColumn",
    "ByList",
    "ClassesPerClient",
    "ClientDatasets",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FavouriteClass",
    "FederatedDataModule",
    "FreshDraw",
    "ImageFolder",
    "MixedNodes",
    "Partition",
    "PoissonClients",
    "RandomClients",
    "RedrawnPartition",
    "Selection",
    "Sentiment140",
    "SequentialClients",
    "Shards",
    "TinyImageNet",
]
