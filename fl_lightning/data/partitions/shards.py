"""Partitions that cut the data into shards of (almost) one class each, and deal the shards to the clients."""

from collections.abc import Sequence

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition
from fl_lightning.data.partitions.grouping import samples_by_class, samples_by_owner
from fl_lightning.data.partitions.sizes import whole_sizes


class Shards(Partition):
    """A partition that sorts the data by label, cuts it into equal shards (± 1 sample) and deals them to the clients.

    Every sample has exactly one owner.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
    Decentralized Data. 2017, section 3. In the paper, each of 100 clients gets 2 of MNIST's 200 shards, so most clients
    see only two digits.

    Args:
        num_clients: number of clients.
        shards_per_client: number of shards per client.
    """

    def __init__(self, num_clients: int, shards_per_client: int = 2) -> None:
        super().__init__(num_clients)
        if shards_per_client < 1:
            raise MisconfigurationError(
                f"shards_per_client={shards_per_client}: set data.partition.init_args.shards_per_client to 1 or more"
            )
        self.shards_per_client = shards_per_client

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        self.check_enough(labels)
        num_shards = self.num_clients * self.shards_per_client
        if num_shards > len(labels):
            most = len(labels) // self.num_clients
            raise MisconfigurationError(
                f"shards_per_client={self.shards_per_client} makes {num_shards} shards of {len(labels)} samples:"
                f" set data.partition.init_args.shards_per_client to {most} or fewer"
            )
        generator = generator_for("partition", seed)
        shuffled = generator.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        owners = generator.permutation(np.repeat(np.arange(self.num_clients), self.shards_per_client))
        sizes = whole_sizes(len(labels), np.ones(num_shards))
        return samples_by_owner(by_label, np.repeat(owners, sizes), self.num_clients)


class FavouriteClass(Partition):
    """A partition in which every client has a favourite class, which it draws with probability η.

    Every sample has exactly one owner.

    Duan, Li, Lu. FedDNA: Federated Learning with Decoupled Normalization-Layer Aggregation for Non-IID Data. 2021,
    section 5. Client k of K favours class k mod C, where C is the number of classes. The other classes share 1 − η in
    proportion to max(0, N(0.5, 1)), drawn for each client and class, or equally if all of these are 0. Clients take
    turns: each draws a class among those with shards left and gets one of its shards, until no shards are left.

    Args:
        num_clients: number of clients.
        eta: η, the probability of the favourite class. With 1, a client gets other classes only when the shards of its
            favourite are used up.
        shards_per_class: number of shards (of equal size ± 1 sample) that each class is cut into. A client gets
            C · shards_per_class / K (± 1) shards.
    """

    def __init__(self, num_clients: int, eta: float, shards_per_class: int = 200) -> None:
        super().__init__(num_clients)
        if not 0 <= eta <= 1:
            raise MisconfigurationError(
                f"eta={eta}, but it is a probability: set data.partition.init_args.eta in [0, 1]"
            )
        if shards_per_class < 1:
            raise MisconfigurationError(
                f"shards_per_class={shards_per_class}: set data.partition.init_args.shards_per_class to 1 or more"
            )
        self.eta = eta
        self.shards_per_class = shards_per_class

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        present, samples_of = samples_by_class(labels)
        self._check_shards(present, samples_of)
        generator = generator_for("partition", seed)
        normal = generator.normal(0.5, 1.0, size=(self.num_clients, len(present)))
        owners_of = self._deal(favourite_shares(normal, self.eta), generator)
        owners = [
            np.repeat(owners, whole_sizes(len(samples), np.ones(self.shards_per_class)))
            for owners, samples in zip(owners_of, samples_of, strict=True)
        ]
        samples = np.concatenate([generator.permutation(samples) for samples in samples_of])
        return samples_by_owner(samples, np.concatenate(owners), self.num_clients)

    def _deal(self, shares: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return the owners of each class's shards.

        The turns of all clients are drawn at once. When a class runs out, the turns after that are drawn again.
        """
        num_classes = shares.shape[1]
        left = np.full(num_classes, self.shards_per_class)
        owners_of: list[list[np.ndarray]] = [[] for _ in left]
        first = 0
        while left.any():
            open_shares = np.where(left > 0, shares[first:], 0.0)
            open_shares[open_shares.sum(axis=1) == 0] = left > 0
            ends = np.cumsum(open_shares, axis=1)
            drawn = (generator.random((len(ends), 1)) * ends[:, -1:] >= ends).sum(axis=1)
            takers_of = [np.flatnonzero(drawn == c) for c in range(num_classes)]
            run_out = [takers[n - 1] for takers, n in zip(takers_of, left, strict=True) if 0 < n <= len(takers)]
            until = min(run_out) + 1 if run_out else len(drawn)
            for c, takers in enumerate(takers_of):
                takers = takers[takers < until]
                owners_of[c].append(first + takers)
                left[c] -= len(takers)
            first = (first + until) % self.num_clients
        return [np.concatenate(owners) for owners in owners_of]

    def _check_shards(self, present: np.ndarray, samples_of: Sequence[Indices]) -> None:
        """Raise an error if a class cannot be cut into the shards, or if some client would get none."""
        fewest = min(range(len(present)), key=lambda c: len(samples_of[c]))
        if self.shards_per_class > len(samples_of[fewest]):
            raise MisconfigurationError(
                f"shards_per_class={self.shards_per_class}, but class {present[fewest]} has {len(samples_of[fewest])}"
                f" samples: set data.partition.init_args.shards_per_class to {len(samples_of[fewest])} or fewer"
            )
        if self.num_clients > len(present) * self.shards_per_class:
            raise MisconfigurationError(
                f"num_clients={self.num_clients}, but there are {len(present)} x {self.shards_per_class} shards:"
                " set data.partition.init_args.num_clients lower, or shards_per_class higher"
            )


def favourite_shares(normal: np.ndarray, eta: float) -> np.ndarray:
    """Return the probability that each client (row) draws each class (column).

    Args:
        normal: one draw from N(0.5, 1) per client and class.
        eta: probability of the favourite class, k mod C for client k.
    """
    clients, classes = normal.shape
    favourite = np.arange(clients) % classes
    others = np.maximum(normal, 0.0)
    others[np.arange(clients), favourite] = 0.0
    others[others.sum(axis=1) == 0] = 1.0
    others[np.arange(clients), favourite] = 0.0
    shares = (1 - eta) * others / np.maximum(others.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    shares[np.arange(clients), favourite] = eta if classes > 1 else 1.0
    return shares
