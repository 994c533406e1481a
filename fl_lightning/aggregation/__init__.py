"""Aggregators: the server's half of each algorithm, with one file or folder per algorithm."""

from fl_lightning.aggregation.base import Aggregate, Aggregator, Federation, Weighting
from fl_lightning.aggregation.coordinate_wise import CoordinateMedian, TrimmedMean
from fl_lightning.aggregation.dp_fedavg import DPFedAvg
from fl_lightning.aggregation.fedadp import FedAdp
from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.aggregation.fedbn import FedBN
from fl_lightning.aggregation.feddna import FedDNA
from fl_lightning.aggregation.feddyn import FedDyn
from fl_lightning.aggregation.fedma import FedMA
from fl_lightning.aggregation.fednnnn import FedNNNN, Momentum, NormNorm
from fl_lightning.aggregation.fednova import FedNova
from fl_lightning.aggregation.fedns import FedAvgLastFC, FedNS
from fl_lightning.aggregation.fedprox import FedProx, ProximalTerm
from fl_lightning.aggregation.geometric_median import GeometricMedian
from fl_lightning.aggregation.krum import Krum, MultiKrum
from fl_lightning.aggregation.norm_clipping import NormClipping
from fl_lightning.aggregation.robust import ColumnAggregator
from fl_lightning.aggregation.scaffold import Scaffold
from fl_lightning.aggregation.split import GatheredAggregator, Participant, Received, SplitAggregator
from fl_lightning.aggregation.streaming import StreamingAggregator

__all__ = [
    "Aggregate",
    "Aggregator",
    "ColumnAggregator",
    "CoordinateMedian",
    "DPFedAvg",
    "FedAdp",
    "FedAvg",
    "FedAvgLastFC",
    "FedBN",
    "FedDNA",
    "FedDyn",
    "FedMA",
    "FedNNNN",
    "FedNS",
    "FedNova",
    "FedProx",
    "Federation",
    "GatheredAggregator",
    "GeometricMedian",
    "Krum",
    "Momentum",
    "MultiKrum",
    "NormClipping",
    "NormNorm",
    "Participant",
    "ProximalTerm",
    "Received",
    "Scaffold",
    "SplitAggregator",
    "StreamingAggregator",
    "TrimmedMean",
    "Weighting",
]
