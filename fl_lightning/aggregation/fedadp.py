"""FedAdp: clients are weighted by the angle between their gradient and the global one.

Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting. IEEE Transactions on Cognitive Communications and
Networking, 2021.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.split import SplitAggregator
from fl_lightning.core.limits import check_number
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.state import FlatState
from fl_lightning.metrics.functional import adaptive_weights, angles_of, gradient_divergence, products_of


class FedAdp(SplitAggregator):
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
        check_number(
            "alpha",
            alpha,
            at_least=0,
            reason="a client that deviates from the average must not get more weight",
            setting="alpha of FedAdp",
        )
        self.alpha = alpha
        self.angles: dict[int, float] = {}
        self.smoothed_angles: dict[int, float] = {}
        self.contributions: dict[int, float] = {}
        #: by client, the sum of its angles and the number of its rounds
        self._history: dict[int, tuple[float, int]] = {}

    def finish_round(self) -> Aggregate:
        p = self.weights
        clients = [item.update.client for item in self.cohort]
        average = torch.zeros_like(self.start.parameters)  # -η g (line 9); -η cancels in the angle
        for weight, update in zip(self.own(p).tolist(), self._updates(), strict=True):
            average.add_(update, alpha=weight)
        self.sum_over_clients(average)

        rows = []
        for update in self._updates():
            products = products_of(average, update)
            rows.append(torch.cat([products, update.sub_(average).norm().reshape(1)]))
        measured = self.rows_of_all(rows, width=3)
        angles = angles_of(average, measured[:, :2])  # eq. 7
        smoothed = [self._smooth(client, angle) for client, angle in zip(clients, angles, strict=True)]  # eq. 8
        psi = adaptive_weights(p.new_tensor(smoothed), p, self.alpha)  # eq. 9-10

        self.angles = dict(zip(clients, angles, strict=True))
        self.smoothed_angles = dict(zip(clients, smoothed, strict=True))
        self.contributions = dict(zip(clients, psi.tolist(), strict=True))

        # Σ ψ_k = 1, so w + Σ ψ_k Δ_k is Σ ψ_k w_k (line 13).
        state = FlatState(self.mean_of("parameters", psi), self.mean_of("statistics", self.sizes), self.counters)
        rates = [item.update.learning_rate for item in self.cohort]
        divergence = gradient_divergence(measured[:, 2].tolist(), rates)
        return Aggregate(
            self.result(state), metrics={"fedadp/angle_mean": fmean(angles), "fedadp/divergence": divergence}
        )

    def state_dict(self) -> dict[str, Any]:
        # Three tensors for all clients: a tensor per client would take far more space than its number.
        sums, rounds = zip(*self._history.values(), strict=True) if self._history else ((), ())
        return {
            "clients": torch.tensor(list(self._history), dtype=torch.int64),
            "angle_sums": torch.tensor(sums, dtype=torch.float64),
            "rounds": torch.tensor(rounds, dtype=torch.int64),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        clients, sums, rounds = (
            require_type(state_dict[name], Tensor, name).tolist() for name in ("clients", "angle_sums", "rounds")
        )
        self._history = dict(zip(clients, zip(sums, rounds, strict=True), strict=True))

    def _updates(self) -> Iterator[Tensor]:
        """Yield the Δ_k of this rank's clients in reused memory, because allocating it costs more than summing."""
        update = torch.empty_like(self.start.parameters)
        for item in self.received:
            yield update.copy_(item.state.parameters).sub_(self.start.parameters)

    def _smooth(self, client: int, angle: float) -> float:
        """Return the mean of the client's angles (eq. 8, with t counting the rounds of this client)."""
        angle_sum, rounds = self._history.get(client, (0.0, 0))
        self._history[client] = angle_sum + angle, rounds + 1
        return (angle_sum + angle) / (rounds + 1)
