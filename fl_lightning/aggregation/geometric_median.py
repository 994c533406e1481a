"""RFA: the geometric median of the clients' models, approximated by a few weighted means.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing, 2022
(algorithm 2, the smoothed Weiszfeld algorithm). https://arxiv.org/abs/1912.13445
"""

import torch
from torch import Tensor

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.robust import ColumnAggregator, column_medians, differences
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import FlatState

#: an update that is this many times as long as most others pulls the mean so far that a few iterations do not return
_FAR = 100


class GeometricMedian(ColumnAggregator):
    """Approximates the v that minimises Σ p_k ‖v - w_k‖.

    Bad clients with less than half of the weight cannot move the minimum far. v starts as the weighted mean, or as the
    coordinate-wise median if an update is more than 100 times as long as the median length. Each iteration takes a
    weighted mean in which a client that is far from v counts less. Distances are over parameters and statistics
    together, which get the same weights.

    Args:
        iterations: R, the number of iterations; 0 is FedAvg. The paper uses 3, and always starts at the mean.
        smoothing: ν, the distance below which a client's weight no longer grows.
    """

    def __init__(self, iterations: int = 3, smoothing: float = 1e-6) -> None:
        check_number("iterations", iterations, at_least=0, setting="iterations of GeometricMedian")
        reason, setting = "the median divides by it", "smoothing of GeometricMedian"
        check_number("smoothing", smoothing, above=0, reason=reason, setting=setting)
        self.iterations = iterations
        self.smoothing = smoothing

    def finish_round(self) -> Aggregate:
        alphas = self.weights
        median = self._first_guess()
        for _ in range(self.iterations):
            betas = alphas / self._distances(median).clamp(min=self.smoothing)
            median = self.mean_with(betas)
        return Aggregate(self.result(median))

    def _first_guess(self) -> FlatState:
        """Return the weighted mean, unless an update has moved it so far that the iterations would not return."""
        if self.iterations:
            lengths = self._distances(self.start)
            if bool(lengths.max() > _FAR * lengths.median()):
                return self.combine(column_medians)
        return self.mean

    def _distances(self, centre: FlatState) -> Tensor:
        """Return every client's distance from the centre."""
        rows = []
        for item in self.received:
            pairs = ((item.state.parameters, centre.parameters), (item.state.statistics, centre.statistics))
            parts = [differences(*pair) for pair in pairs]
            rows.append(torch.stack([part.norm() for part in parts]).norm().reshape(1))
        return self.rows_of_all(rows, width=1).flatten()
