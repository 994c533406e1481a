"""Partitions that cut the data into shards of (almost) one class each, and deal the shards to the clients."""

import math
from collections.abc import Sequence

import numpy as np

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
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
        check_number(
            "shards_per_client",
            shards_per_client,
            at_least=1,
            setting="data.partition.init_args.shards_per_client",
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
    """A partition in which a share η of every client's shards is of its favourite class. No sample has two owners.

    Duan, Li, Lu. FedDNA: Federated Learning with Decoupled Normalization-Layer Aggregation for Non-IID Data. 2021,
    section 5.1: "the client draws samples from a particular class j with a fixed probability η, and from other classes
    based on a Gaussian distribution". Client k of K favours class k mod C, where C is the number of classes. The other
    classes share 1 − η in proportion to max(0, N(0.5, 1)), drawn for each client and class, or equally if all of these
    are 0.

    First, every client gets its share of its favourite class, to the nearest shard, so that η is the same for any
    number of clients. Then clients take turns: each draws one of the other classes that have shards left and gets one
    of its shards, until no shards are left. A client gets more of its favourite only if nothing else is left for it.

    Args:
        num_clients: number of clients.
        eta: η, the share of the favourite class. If a class has too few shards for the clients that favour it, because
            K is smaller than C or not a multiple of it, all clients get fewer shards.
        shards_per_class: number of shards (of equal size ± 1 sample) that each class is cut into. A client gets
            C · shards_per_class / K (± 1) shards.
    """

    def __init__(self, num_clients: int, eta: float, shards_per_class: int = 200) -> None:
        super().__init__(num_clients)
        check_number(
            "eta", eta, at_least=0, at_most=1, reason="it is a probability", setting="data.partition.init_args.eta"
        )
        check_number(
            "shards_per_class", shards_per_class, at_least=1, setting="data.partition.init_args.shards_per_class"
        )
        self.eta = eta
        self.shards_per_class = shards_per_class

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        present, samples_of = samples_by_class(labels)
        self._check_shards(present, samples_of)
        generator = generator_for("partition", seed)
        normal = generator.normal(0.5, 1.0, size=(self.num_clients, len(present)))
        dealt = self._shards(favourite_shares(normal, self.eta), generator)
        used, owners_of = [], []
        for samples, shards in zip(samples_of, dealt.T, strict=True):
            nobody = self.num_clients  # owns the shards that are left
            owners = np.repeat(np.arange(nobody + 1), [*shards, self.shards_per_class - shards.sum()])
            sizes = whole_sizes(len(samples), np.ones(self.shards_per_class))
            owners = np.repeat(generator.permutation(owners), sizes)
            used.append(generator.permutation(samples)[owners < nobody])
            owners_of.append(owners[owners < nobody])
        return samples_by_owner(np.concatenate(used), np.concatenate(owners_of), self.num_clients)

    def _shards(self, shares: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return how many shards of each class (column) each client (row) gets."""
        sizes = self._shards_per_client(shares.shape[1])
        own = _favourites(*shares.shape)
        dealt = np.where(own, self._favourite_shards(sizes, shares.shape[1])[:, None], 0)
        left = self.shards_per_class - dealt.sum(axis=0)
        others = self._deal(np.where(own, 0.0, shares), sizes - dealt.sum(axis=1), left, generator)
        return dealt + _without_favourites(others, generator)

    def _shards_per_client(self, num_classes: int) -> np.ndarray:
        """Return equal numbers (± 1), or smaller ones if a class has too few shards for the clients that favour it."""
        shards = num_classes * self.shards_per_class
        sizes = whole_sizes(shards, np.ones(self.num_clients))
        own = _favourites(self.num_clients, num_classes)
        wanted = (own * self._favourite_shards(sizes, num_classes)[:, None]).sum(axis=0)
        if wanted.max() <= self.shards_per_class:
            return sizes
        most = (self.shards_per_class // own.sum(axis=0).max() + 0.5) / self.eta
        size = math.ceil(most) - 1  # the largest whose favourite shards are not rounded up to one too many
        rank_zero_warn(
            f"eta={self.eta} and num_clients={self.num_clients}: a class has too few shards for the clients that favour"
            f" it, so every client gets {size} shards, and {shards - size * self.num_clients} of {shards} are unused"
        )
        return np.full(self.num_clients, size)

    def _favourite_shards(self, sizes: np.ndarray, num_classes: int) -> np.ndarray:
        """Return how many of each client's shards are of its favourite class: η of them, to the nearest shard."""
        return np.floor(self.eta * sizes + 0.5).astype(np.int64) if num_classes > 1 else sizes

    def _deal(
        self, shares: np.ndarray, turns_of: np.ndarray, left: np.ndarray, generator: np.random.Generator
    ) -> np.ndarray:
        """Return how many shards of each class each client draws, in as many turns as ``turns_of`` says.

        One turn of every client is drawn at once. When a class runs out, the turns after that are drawn again.
        """
        left = left.copy()
        dealt = np.zeros(shares.shape, dtype=np.int64)
        rounds = [np.flatnonzero(turns_of > turn) for turn in range(turns_of.max())]
        turns = np.concatenate([np.zeros(0, dtype=np.int64), *rounds])
        others = ~_favourites(*shares.shape)
        while len(turns):
            clients = turns[: self.num_clients]
            weights = np.where(left > 0, shares[clients], 0.0)
            for fallback in (others[clients], np.ones_like(weights)):
                none = weights.sum(axis=1) == 0
                weights[none] = (fallback * (left > 0))[none]
            ends = np.cumsum(weights, axis=1)
            drawn = (generator.random((len(ends), 1)) * ends[:, -1:] >= ends).sum(axis=1)
            takers_of = [np.flatnonzero(drawn == c) for c in range(len(left))]
            run_out = [takers[n - 1] for takers, n in zip(takers_of, left, strict=True) if 0 < n <= len(takers)]
            until = min(run_out) + 1 if run_out else len(drawn)
            np.add.at(dealt, (clients[:until], drawn[:until]), 1)
            left -= np.bincount(drawn[:until], minlength=len(left))
            turns = turns[until:]
        return dealt

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


def _favourites(clients: int, classes: int) -> np.ndarray:
    """Return a table of which class (column) each client (row) favours: k mod C for client k."""
    return np.arange(clients)[:, None] % classes == np.arange(classes)


def _without_favourites(dealt: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Swap shards of a client's favourite class that it drew because nothing else was left, where that is possible.

    The shard goes to a client with another favourite, in exchange for a shard of any other class.
    """
    own = _favourites(*dealt.shape)
    for client, favourite in np.argwhere(own & (dealt > 0)):
        for _ in range(dealt[client, favourite]):
            partners = np.argwhere(~own[:, [favourite]] & (np.arange(dealt.shape[1]) != favourite) & (dealt > 0))
            if len(partners) == 0:
                break
            partner, other = generator.choice(partners)
            dealt[[client, partner], [favourite, other]] -= 1
            dealt[[client, partner], [other, favourite]] += 1
    return dealt


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
