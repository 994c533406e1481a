"""Clients whose shares of each class are drawn from a Dirichlet distribution."""

import math
from collections.abc import Sequence

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition, checked_minimum
from fl_lightning.data.partitions.grouping import samples_by_class, samples_by_owner

#: Limits on repeated draws. They keep the search to a second or two, even with many clients.
_MAX_DRAWS = 1000
_MAX_DRAWN_NUMBERS = 50_000_000


class Dirichlet(Partition):
    """A partition of each class in proportions drawn from Dir(α). Every sample has exactly one owner.

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.

    Args:
        num_clients: number of clients.
        alpha: concentration α. As it approaches 0, each class has a single owner; as it approaches infinity, all
            clients have equal parts of each class.
        min_samples: minimum per client; the draw is repeated until every client reaches it.
    """

    def __init__(self, num_clients: int, alpha: float, min_samples: int = 1) -> None:
        super().__init__(num_clients)
        if alpha != float("inf"):  # infinity means equal parts of each class
            check_number("alpha", alpha, above=0, setting="data.partition.init_args.alpha")
        self.alpha = alpha
        self.min_samples = checked_minimum(min_samples)

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        self.check_enough(labels, self.min_samples)
        generator = generator_for("partition", seed)
        _, samples_of = samples_by_class(labels)
        sizes = self._sizes([len(samples) for samples in samples_of], generator)
        clients = np.arange(self.num_clients)
        owners = np.concatenate([np.repeat(clients, of_class) for of_class in sizes])
        samples = np.concatenate([generator.permutation(samples) for samples in samples_of])
        return samples_by_owner(samples, owners, self.num_clients)

    def _sizes(self, totals: list[int], generator: np.random.Generator) -> np.ndarray:
        """Return how many samples of each class (rows) each client (columns) has."""
        draws = min(_MAX_DRAWS, max(_MAX_DRAWN_NUMBERS // (self.num_clients * len(totals)), 10))
        for _ in range(draws):
            sizes = np.stack([self._split(total, generator) for total in totals])
            if sizes.sum(axis=0).min() >= self.min_samples:
                return sizes
        raise MisconfigurationError(
            f"alpha={self.alpha} left a client with fewer than min_samples={self.min_samples} of {sum(totals)} samples"
            f" in each of {draws} draws: set alpha higher, or num_clients or min_samples lower"
        )

    def _split(self, total: int, generator: np.random.Generator) -> np.ndarray:
        """Draw how many of a class's ``total`` samples each client has."""
        if math.isinf(self.alpha):
            shares = np.full(self.num_clients, 1 / self.num_clients)
        else:
            shares = generator.dirichlet(np.full(self.num_clients, self.alpha))
        ends = np.round(np.cumsum(shares) * total).astype(np.int64)
        ends[-1] = total
        return np.diff(ends, prepend=0)
