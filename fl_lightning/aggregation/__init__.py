"""Aggregators: the server's half of the algorithms, one file each."""

from fl_lightning.aggregation.base import (
    Aggregate,
    Aggregator,
    GatheredAggregator,
    Received,
    StreamingAggregator,
    Weighting,
)
from fl_lightning.aggregation.fedadp import FedAdp
from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.aggregation.fedbn import FedBN
from fl_lightning.aggregation.feddna import FedDNA
from fl_lightning.aggregation.fedma import FedMA
from fl_lightning.aggregation.fednnnn import FedNNNN, Momentum, NormNorm
from fl_lightning.aggregation.fedns import FedAvgLastFC, FedNS
from fl_lightning.aggregation.fedprox import FedProx
from fl_lightning.aggregation.scaffold import Scaffold

__all__ = [
    "Aggregate",
    "Aggregator",
    "FedAdp",
    "FedAvg",
    "FedAvgLastFC",
    "FedBN",
    "FedDNA",
    "FedMA",
    "FedNNNN",
    "FedNS",
    "FedProx",
    "GatheredAggregator",
    "Momentum",
    "NormNorm",
    "Received",
    "Scaffold",
    "StreamingAggregator",
    "Weighting",
]
