"""How often each client took part."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.metrics.tags import MAX_CURVES, check_max_curves


class ParticipationCounts(Metric):
    """In how many rounds each client took part.

    Args:
        num_clients: K, of all clients.
        max_curves: with more clients than that, only the smallest and the largest count, and not a number a client.
    """

    full_state_update = False
    counts: Tensor
    round_counts: Tensor

    def __init__(self, num_clients: int, max_curves: int = MAX_CURVES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.each = num_clients <= check_max_curves(max_curves)
        zeros = torch.zeros(num_clients, dtype=torch.int64)
        self.add_state("round_counts", zeros, dist_reduce_fx="sum")
        # Every rank knows the same of the rounds before.
        self.add_state("counts", zeros.clone(), dist_reduce_fx="max", persistent=True)

    def update(self, client: int) -> None:
        """A client took part in this round."""
        self.round_counts[client] += 1

    def compute(self) -> dict[str, Tensor]:
        """``participation/client_...``, ``least``, ``most`` and ``clients``, counting this round too."""
        self._total = (self.counts + self.round_counts).cpu()
        values = {f"participation/client_{client:03d}": n for client, n in enumerate(self._total)} if self.each else {}
        return values | {
            "participation/least": self._total.min(),
            "participation/most": self._total.max(),
            "participation/clients": (self._total > 0).sum(),
        }

    def next_round(self) -> None:
        """Begins a new round; the counts go on."""
        self.compute()
        self.reset()
        self.counts = self._total.to(self.counts)
