"""Partitions: which samples a client owns, a pure function of the labels and a seed."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from fl_lightning.randomness import generator_for

_MOST_DRAWS = 1000

Sizes = Literal["balanced", "power_law"]
Indices = np.ndarray


class Partition(ABC):
    """Base of all partitions.

    Args:
        num_clients: how many clients share the data.
    """

    #: whether it looks at the labels; one that does not works for any data
    needs_labels = True

    def __init__(self, num_clients: int) -> None:
        if num_clients < 1:
            raise MisconfigurationException(
                f"num_clients={num_clients}, but a federation has at least one client:"
                " set data.partition.init_args.num_clients to 1 or more"
            )
        self.num_clients = num_clients

    @abstractmethod
    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        """The indices of each client's samples, one array a client.

        Args:
            labels: the class of every sample.
            seed: the same seed gives the same split.
        """

    def _check_enough(self, labels: np.ndarray) -> None:
        if self.num_clients > len(labels):
            raise MisconfigurationException(
                f"num_clients={self.num_clients}, but the data set has {len(labels)} samples:"
                f" set data.partition.init_args.num_clients to {len(labels)} or fewer"
            )


class IID(Partition):
    """Every client draws from the whole data set; no sample belongs to two.

    Args:
        num_clients: how many clients share the data.
        sizes: ``balanced`` gives all the same number of samples (± 1), ``power_law`` gives client k a share
            proportional to (k + 1)^-exponent.
        exponent: of the power law; 0 is balanced.
    """

    needs_labels = False

    def __init__(self, num_clients: int, sizes: Sizes = "balanced", exponent: float = 1.0) -> None:
        super().__init__(num_clients)
        self.shares = client_shares(num_clients, sizes, exponent)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels)
        order = generator_for("partition", seed).permutation(len(labels))
        return _cut(order, self.shares)


class ClassesPerClient(Partition):
    """Every client owns samples of a few classes only; all samples of a dealt class are shared out, none twice.

    Classes are dealt from shuffled decks: each has the same number of holders (± 1), and a client's are distinct.

    Args:
        num_clients: how many clients share the data.
        classes: how many classes a client owns.
        sizes: ``balanced`` splits a class evenly among its holders, ``power_law`` in proportion to (k + 1)^-exponent
            for client k.
        exponent: of the power law; 0 is balanced.
    """

    def __init__(self, num_clients: int, classes: int, sizes: Sizes = "balanced", exponent: float = 1.0) -> None:
        super().__init__(num_clients)
        if classes < 1:
            raise MisconfigurationException(
                f"classes={classes}, but a client owns at least one: set data.partition.init_args.classes to 1 or more"
            )
        self.classes = classes
        self.shares = client_shares(num_clients, sizes, exponent)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels)
        present = np.unique(labels)
        if self.classes > len(present):
            raise MisconfigurationException(
                f"classes={self.classes}, but the data set has {len(present)}:"
                f" set data.partition.init_args.classes to {len(present)} or fewer"
            )
        generator = generator_for("partition", seed)
        hands = deal(present, self.num_clients, self.classes, generator)
        parts: list[list[Indices]] = [[] for _ in hands]
        for label in present:
            holders = [client for client, hand in enumerate(hands) if label in hand]
            samples = generator.permutation(np.flatnonzero(labels == label))
            if not holders:
                rank_zero_warn(
                    f"class {label} belongs to no client: {self.num_clients} clients x {self.classes} classes"
                    f" are fewer than the {len(present)} classes of the data set; its {len(samples)} samples are unused"
                )
                continue
            if len(holders) > len(samples):
                raise MisconfigurationException(
                    f"class {label} has {len(samples)} samples for {len(holders)} clients, so some would be empty:"
                    " set data.partition.init_args.num_clients or classes lower"
                )
            for client, part in zip(holders, _cut(samples, self.shares[holders]), strict=True):
                parts[client].append(part)
        return [generator.permutation(np.concatenate(part)) for part in parts]


class Dirichlet(Partition):
    """Each class is split among the clients in proportions drawn from Dir(α); everything is assigned, nothing twice.

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.

    Args:
        num_clients: how many clients share the data.
        alpha: concentration; towards 0 a class has one owner, towards infinity all have equal parts of each class.
        min_samples: the draw is repeated until every client has as many.
    """

    def __init__(self, num_clients: int, alpha: float, min_samples: int = 1) -> None:
        super().__init__(num_clients)
        if not alpha > 0:
            raise MisconfigurationException(f"alpha={alpha}: set data.partition.init_args.alpha above 0")
        if min_samples < 1:
            raise MisconfigurationException(
                f"min_samples={min_samples}: set data.partition.init_args.min_samples to 1 or more"
            )
        self.alpha = alpha
        self.min_samples = min_samples

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels)
        generator = generator_for("partition", seed)
        for _ in range(_MOST_DRAWS):
            parts: list[list[Indices]] = [[] for _ in range(self.num_clients)]
            for label in np.unique(labels):
                samples = generator.permutation(np.flatnonzero(labels == label))
                for part, share in zip(parts, np.split(samples, self._cuts(len(samples), generator)), strict=True):
                    part.append(share)
            clients = [generator.permutation(np.concatenate(part)) for part in parts]
            if min(map(len, clients)) >= self.min_samples:
                return clients
        raise MisconfigurationException(
            f"alpha={self.alpha} gave a client with fewer than min_samples={self.min_samples} of {len(labels)} samples"
            f" in {_MOST_DRAWS} draws: set alpha higher, or num_clients or min_samples lower"
        )

    def _cuts(self, total: int, generator: np.random.Generator) -> np.ndarray:
        if math.isinf(self.alpha):
            shares = np.full(self.num_clients, 1 / self.num_clients)
        else:
            shares = generator.dirichlet(np.full(self.num_clients, self.alpha))
        return np.round(np.cumsum(shares)[:-1] * total).astype(int)


def client_shares(num_clients: int, sizes: Sizes, exponent: float = 1.0) -> np.ndarray:
    """Relative sizes of the clients' data."""
    if sizes not in ("balanced", "power_law"):
        raise MisconfigurationException(f"sizes={sizes!r} is not one of balanced, power_law")
    if exponent < 0:
        raise MisconfigurationException(f"exponent={exponent}, but the power law falls: set it to 0 or more")
    return np.arange(1, num_clients + 1, dtype=float) ** -(exponent if sizes == "power_law" else 0.0)


def deal(classes: np.ndarray, players: int, cards: int, generator: np.random.Generator) -> list[list[int]]:
    """Deals ``cards`` distinct classes to each player from one shuffled deck after the other."""
    deck: list[int] = []
    hands: list[list[int]] = []
    for _ in range(players):
        hand: list[int] = []
        while len(hand) < cards:
            card = next((card for card in deck if card not in hand), None)
            if card is None:
                deck.extend(generator.permutation(classes).tolist())
            else:
                deck.remove(card)
                hand.append(card)
        hands.append(hand)
    return hands


def whole_sizes(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers that add up to ``total``, in proportion to ``shares`` (largest remainders), none of them zero."""
    exact = total * shares / shares.sum()
    sizes = np.maximum(np.floor(exact), 1).astype(int)
    missing = total - sizes.sum()
    if missing > 0:
        sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
    while missing < 0:  # the minimum of one sample took from a total that is almost used up: the largest give
        sizes[np.argmax(sizes)] -= 1
        missing += 1
    return sizes


def _cut(samples: Indices, shares: np.ndarray) -> list[Indices]:
    return np.split(samples, np.cumsum(whole_sizes(len(samples), shares))[:-1])
