"""Data: sources, partitions (who owns what), selections (who takes part)."""

from fl_lightning.data.datamodule import ClientDatasets, FederatedDataModule
from fl_lightning.data.digits import Digits
from fl_lightning.data.folders import ImageFolder, TinyImageNet
from fl_lightning.data.natural import ByColumn, ByList
from fl_lightning.data.nodes import MixedNodes
from fl_lightning.data.partition import IID, ClassesPerClient, Dirichlet, Partition, RedrawnPartition
from fl_lightning.data.redrawn import FreshDraw
from fl_lightning.data.selection import AllClients, RandomClients, Selection, SequentialClients
from fl_lightning.data.sentiment140 import Sentiment140
from fl_lightning.data.shards import FavouriteClass, Shards
from fl_lightning.data.torchvision_sets import CIFAR10, MNIST, FashionMNIST

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
    "RandomClients",
    "RedrawnPartition",
    "Selection",
    "Sentiment140",
    "SequentialClients",
    "Shards",
    "TinyImageNet",
]
