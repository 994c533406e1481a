"""FedMA: the aggregator, the graph of layers it works on, and the matching of units."""

from fl_lightning.aggregation.fedma.aggregator import FedMA

__all__ = ["FedMA"]
