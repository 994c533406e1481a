"""How often each client took part."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class ParticipationCounts(Metric):
    """In how many rounds each client took part.

    Args:
        num_clients: K, of all clients.
    """

    full_state_update = False
    counts: Tensor
    round_counts: Tensor

    def __init__(self, num_clients: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        zeros = torch.zeros(num_clients, dtype=torch.int64)
        self.add_state("round_counts", zeros, dist_reduce_fx="sum")
        # Every rank knows the same of the rounds before.
        self.add_state("counts", zeros.clone(), dist_reduce_fx="max", persistent=True)

    def update(self, client: int) -> None:
        """A client took part in this round."""
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
        """Begins a new round; the counts go on."""
        self.compute()
        self.reset()
        self.counts = self._total.to(self.counts)
