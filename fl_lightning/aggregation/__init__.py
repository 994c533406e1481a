"""Aggregators: the server's half of the algorithms, one file each."""

from fl_lightning.aggregation.base import (
    Aggregate,
    Aggregator,
    GatheredAggregator,
    Received,
    StreamingAggregator,
    Weighting,
)
from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.aggregation.fedbn import FedBN
from fl_lightning.aggregation.fednnnn import FedNNNN, Momentum, NormNorm
from fl_lightning.aggregation.fedprox import FedProx
from fl_lightning.aggregation.scaffold import Scaffold

__all__ = [
    "Aggregate",
    "Aggregator",
    "FedAvg",
    "FedBN",
    "FedNNNN",
    "FedProx",
    "GatheredAggregator",
    "Momentum",
    "NormNorm",
    "Received",
    "Scaffold",
    "StreamingAggregator",
    "Weighting",
]
