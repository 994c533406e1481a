"""The angles between the clients' updates and their average.

Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting. IEEE Transactions on Cognitive Communications and
Networking, 2021. https://arxiv.org/abs/2012.00661
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.metrics.comparison import AverageComparison
from fl_lightning.metrics.functional import adaptive_weights, angles_of, products_of


class UpdateAngles(AverageComparison):
    """Each client's angle θ_k to the average update, its mean so far, and the weight that FedAdp would give the client.

    The updates of a round are kept in float32 until it ends. In a distributed run, each rank keeps its own clients'
    updates.

    Args:
        model: a model with the same names and shapes as the states to measure; it is not kept.
        num_clients: K, the number of all clients.
        alpha: FedAdp's α: how much more weight a small angle gets than a large one.

    Example::

        angles = UpdateAngles(model, num_clients=100)
        for client, state in client_states.items():
            angles.update(client, start, state, weight=600)
        angles.compute()  # {"angle": {3: 0.4, 17: 1.2}, "smoothed": {...}, "weight": {...}}
        angles.next_round()
    """

    angle_sum: Tensor
    rounds: Tensor

    def __init__(self, model: nn.Module, num_clients: int, alpha: float = 5.0, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.num_clients = num_clients
        self.alpha = alpha
        # Every rank holds the same history, so the maximum does not change it.
        self.add_state("angle_sum", self.weight.new_zeros(num_clients), dist_reduce_fx="max", persistent=True)
        self.add_state("rounds", self.weight.new_zeros(num_clients), dist_reduce_fx="max", persistent=True)
        self._angles: dict[int, float] = {}

    def update(
        self,
        client: int,
        start: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        weight: float = 1.0,
        difference: Tensor | None = None,
    ) -> None:
        """Add a client.

        Args:
            client: the client's number.
            start: the state that the client started from.
            state: the state that the client ended with.
            weight: the client's weight before normalisation: its number of samples, or 1.
            difference: ``state - start`` over ``layout.parameters`` as one vector, if the caller has it already.
        """
        self._add(start, state, weight, float(client), difference=difference)

    def compare(self, average: Tensor, updates: Iterator[Tensor]) -> list[float]:
        """Return each θ_k (eq. 7). The updates are -η times the gradients, and -η cancels in the angle."""
        products = [products_of(average, update) for update in updates]
        return angles_of(average, torch.stack(products)) if products else []

    def compute(self) -> dict[str, dict[int, float]]:
        """Return ``angle``, ``smoothed`` (both in radians) and ``weight``, each by client."""
        rows = self._rows(width=3)
        rows = rows[rows[:, 2].argsort()]
        angles, weights, clients = rows[:, 0], rows[:, 1], rows[:, 2].long()
        angle_sum, rounds = self.angle_sum.cpu()[clients], self.rounds.cpu()[clients]
        smoothed = (angle_sum + angles) / (rounds + 1)  # eq. 8, with t counting the rounds of this client
        psi = adaptive_weights(smoothed, weights, self.alpha)  # eq. 9-10
        self._angles = _by_client(clients, angles)
        return {
            "angle": self._angles,
            "smoothed": _by_client(clients, smoothed),
            "weight": _by_client(clients, psi),
        }

    def next_round(self) -> None:
        """Start a new round; the angles so far carry over."""
        self.compute()
        angle_sum, rounds = self.angle_sum.clone(), self.rounds.clone()
        for client, angle in self._angles.items():
            angle_sum[client] += angle
            rounds[client] += 1
        self.reset()
        self.angle_sum, self.rounds = angle_sum, rounds


def _by_client(clients: Tensor, values: Tensor) -> dict[int, float]:
    return dict(zip(clients.tolist(), values.tolist(), strict=True))
