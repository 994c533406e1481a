"""FedAdp: clients are weighted by the angle between their gradient and the global one.

Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting. IEEE Transactions on Cognitive Communications and
Networking, 2021.
"""

from collections.abc import Iterator
from statistics import fmean

import torch
from torch import Tensor

from fl_lightning.aggregation.base import Aggregate, GatheredAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.state import FlatState
from fl_lightning.metrics.functional import adaptive_weights, angles_of, gradient_divergence, products_of


class FedAdp(GatheredAggregator):
    """w ← w + Σ ψ_k Δ_k, where ψ_k is large if client k's updates have so far agreed with the average (algorithm 1).

    Each client's angle is averaged over the rounds that it took part in. Statistics are averaged as in FedAvg.

    Args:
        alpha: how much more weight a small angle gets than a large one, at most e^α times as much; 0 is FedAvg.

    Attributes:
        angles: θ_k of the last round, in radians, by client.
        smoothed_angles: the mean of θ_k over the rounds of client k.
        contributions: ψ_k, which sum to 1.
    """

    def __init__(self, alpha: float = 5.0) -> None:
        if alpha < 0:
            raise MisconfigurationError(
                f"alpha={alpha}, but a client that deviates from the average must not get more weight:"
                " set it to 0 (FedAvg) or above"
            )
        self.alpha = alpha
        self.angles: dict[int, float] = {}
        self.smoothed_angles: dict[int, float] = {}
        self.contributions: dict[int, float] = {}

    def finish_round(self) -> Aggregate:
        p = self.weights
        clients = [item.update.client for item in self.received]
        average = torch.zeros_like(self.start.parameters)  # -η g (line 9); -η cancels in the angle
        for weight, update in zip(p.tolist(), self._updates(), strict=True):
            average.add_(update, alpha=weight)

        products, distances = [], []
        for update in self._updates():
            products.append(products_of(average, update))
            distances.append(update.sub_(average).norm())
        angles = angles_of(average, products)  # eq. 7
        smoothed = [self._smooth(client, angle) for client, angle in zip(clients, angles, strict=True)]  # eq. 8
        psi = adaptive_weights(p.new_tensor(smoothed), p, self.alpha)  # eq. 9-10

        self.angles = dict(zip(clients, angles, strict=True))
        self.smoothed_angles = dict(zip(clients, smoothed, strict=True))
        self.contributions = dict(zip(clients, psi.tolist(), strict=True))

        # Σ ψ_k = 1, so w + Σ ψ_k Δ_k is Σ ψ_k w_k (line 13).
        state = FlatState(
            self.mean_of("parameters", psi), self.mean_of("statistics", self.sizes), self.largest_counters
        )
        rates = [item.update.learning_rate for item in self.received]
        divergence = gradient_divergence(torch.stack(distances).tolist(), rates)
        return Aggregate(
            self.result(state), metrics={"fedadp/angle_mean": fmean(angles), "fedadp/divergence": divergence}
        )

    def _updates(self) -> Iterator[Tensor]:
        """Yield each client's Δ_k in turn, in memory that is reused, because allocating it costs more than the sums."""
        update = torch.empty_like(self.start.parameters)
        for item in self.received:
            yield update.copy_(item.state.parameters).sub_(self.start.parameters)

    def _smooth(self, client: int, angle: float) -> float:
        """Return the mean of the client's angles (eq. 8, with t counting the rounds of this client)."""
        kept = self.memory.get(client, torch.device("cpu")) or {
            "angle_sum": torch.zeros((), dtype=torch.float64),
            "rounds": torch.zeros((), dtype=torch.int64),
        }
        angle_sum, rounds = kept["angle_sum"] + angle, kept["rounds"] + 1
        self.memory.put(client, {"angle_sum": angle_sum, "rounds": rounds})
        return float(angle_sum / rounds)
