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

__all__ = [
    "Aggregate",
    "Aggregator",
    "FedAvg",
    "GatheredAggregator",
    "Received",
    "StreamingAggregator",
    "Weighting",
]
