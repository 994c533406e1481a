"""Partitions decide which samples each client owns."""

from fl_lightning.data.partitions.base import Indices, Partition, RedrawnPartition
from fl_lightning.data.partitions.classes import ClassesPerClient
from fl_lightning.data.partitions.dirichlet import Dirichlet
from fl_lightning.data.partitions.fresh_draw import FreshDraw
from fl_lightning.data.partitions.iid import IID
from fl_lightning.data.partitions.mixed_nodes import MixedNodes
from fl_lightning.data.partitions.natural import ByColumn, ByList
from fl_lightning.data.partitions.shards import FavouriteClass, Shards

__all__ = [
    "IID",
    "ByColumn",
    "ByList",
    "ClassesPerClient",
    "Dirichlet",
    "FavouriteClass",
    "FreshDraw",
    "Indices",
    "MixedNodes",
    "Partition",
    "RedrawnPartition",
    "Shards",
]
