"""Coordinate-wise median and trimmed mean: a few bad clients cannot move an entry beyond the good clients' values.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018
(definitions 1 and 2). https://arxiv.org/abs/1803.01498
"""

from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.robust import ColumnAggregator, check_fraction, column_medians, share_of, warn_if_nobody


class CoordinateMedian(ColumnAggregator):
    """Every entry of the global model becomes the median of that entry over the clients.

    If fewer than half of the clients are bad, they cannot move an entry out of the range of the others. All clients
    count equally, because a bad client could claim any number of samples. Statistics become medians too.
    """

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.combine(column_medians)))


class TrimmedMean(ColumnAggregator):
    """Every entry becomes the mean of that entry over the clients, without its largest and its smallest values.

    Bad clients cannot move an entry out of the range of the others, as long as at least as many values are left out at
    each end. All clients count equally, because a bad client could claim any number of samples. Statistics are trimmed
    too.

    Args:
        fraction: β, the fraction of the clients that is left out at each end, rounded down to whole clients; 0 is the
            plain mean.
    """

    def __init__(self, fraction: float = 0.2) -> None:
        check_fraction(fraction, self)
        self.fraction = fraction

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        warn_if_nobody(self.fraction, federation, self, fewest=3)

    def finish_round(self) -> Aggregate:
        clients = len(self.cohort)
        cut = share_of(self.fraction, clients)

        def trimmed(rows: Tensor) -> Tensor:
            return rows.sort(dim=0).values[cut : clients - cut].mean(dim=0)

        return Aggregate(self.result(self.combine(trimmed)), metrics={"trimmed_mean/left_out": 2.0 * cut})
