"""Clients that all draw from the same distribution."""

from collections.abc import Sequence

import numpy as np

from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition, checked_minimum
from fl_lightning.data.partitions.grouping import cut
from fl_lightning.data.partitions.sizes import Sizes, client_shares, whole_sizes


class IID(Partition):
    """A random partition: the data is shuffled and divided among the clients. Every sample has exactly one owner.

    Args:
        num_clients: number of clients.
        sizes: ``balanced`` gives all clients the same number of samples (± 1); ``power_law`` gives client k a share
            proportional to (k + 1)^-exponent.
        exponent: exponent of the power law; 0 is balanced.
        min_samples: minimum per client; larger clients give up samples.
    """

    needs_labels = False

    def __init__(
        self, num_clients: int, sizes: Sizes = "balanced", exponent: float = 1.0, min_samples: int = 1
    ) -> None:
        super().__init__(num_clients)
        self.sizes = sizes
        self.exponent = exponent
        self.min_samples = checked_minimum(min_samples)
        self._shares = client_shares(num_clients, sizes, exponent)

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        self.check_enough(labels, self.min_samples)
        order = generator_for("partition", seed).permutation(len(labels))
        return cut(order, whole_sizes(len(labels), self._shares, self.min_samples))
