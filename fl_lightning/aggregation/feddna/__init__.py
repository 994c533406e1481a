"""FedDNA: the aggregator, and the networks that learn its importance weights."""

from fl_lightning.aggregation.feddna.aggregator import FedDNA

__all__ = ["FedDNA"]
