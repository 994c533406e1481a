"""How often each client took part."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class ParticipationCounts(Metric):
    """Counts the rounds that each client took part in.

    Args:
        num_clients: K, the number of all clients.

    Example::

        participation = ParticipationCounts(num_clients=100)
        for client in (3, 17):
            participation.update(client)
        participation.compute()  # {"counts": tensor of 100, "least": 0, "most": 1, "clients": 2}
        participation.next_round()
    """

    full_state_update = False
    counts: Tensor
    round_counts: Tensor

    def __init__(self, num_clients: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        zeros = torch.zeros(num_clients, dtype=torch.int64)
        self.add_state("round_counts", zeros, dist_reduce_fx="sum")
        # Every rank holds the same history, so the maximum does not change it.
        self.add_state("counts", zeros.clone(), dist_reduce_fx="max", persistent=True)

    def update(self, client: int) -> None:
        """Count a client that takes part in this round."""
        self.round_counts[client] += 1

    def compute(self) -> dict[str, Tensor]:
        """Return ``counts`` by client, their ``least`` and ``most``, and how many ``clients`` ever took part."""
        self._total = (self.counts + self.round_counts).cpu()
        return {
            "counts": self._total,
            "least": self._total.min(),
            "most": self._total.max(),
            "clients": (self._total > 0).sum(),
        }

    def next_round(self) -> None:
        """Start a new round; the counts carry over."""
        self.compute()
        self.reset()
        self.counts = self._total.to(self.counts)
