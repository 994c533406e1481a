"""A partition that gives clients similar data, but very different amounts of it."""

import numpy as np

from fl_lightning.core.randomness import generator_for
from fl_lightning.data import Partition
from fl_lightning.data.partitions import Indices
from fl_lightning.data.partitions.sizes import whole_sizes


class LogNormalSizes(Partition):
    """A random partition whose sizes are proportional to draws from a log-normal distribution.

    Args:
        num_clients: number of clients.
        sigma: standard deviation of the logarithm of a size; 0 gives all clients the same size.
    """

    needs_labels = False

    def __init__(self, num_clients: int, sigma: float = 1.0) -> None:
        super().__init__(num_clients)
        self.sigma = sigma

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self.check_enough(labels)
        generator = generator_for("partition", seed)
        sizes = whole_sizes(len(labels), generator.lognormal(sigma=self.sigma, size=self.num_clients))
        return np.split(generator.permutation(len(labels)), np.cumsum(sizes)[:-1])
