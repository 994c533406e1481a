"""Clients that own samples of only a few classes."""

import math
from typing import Any

import numpy as np

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition, check_classes, checked_minimum
from fl_lightning.data.partitions.grouping import cut, samples_by_class
from fl_lightning.data.partitions.sizes import Sizes, client_shares, whole_sizes


class ClassesPerClient(Partition):
    """A partition in which every client owns samples of only a few classes. No sample has two owners.

    Classes are dealt like cards, from one shuffled deck of all classes after another. A client's classes are distinct,
    and every class has the same number of owners (± 1), who divide all of its samples among themselves.

    Nagura, Bian, Sato. FedNNNN: Norm-Normalized Neural Network Aggregation for Fast and Accurate Federated Learning,
    section 5.1: "For the iii) balanced condition, all clients have dataset of the same size."

    Args:
        num_clients: number of clients.
        classes: number of classes per client.
        sizes: ``balanced`` gives all clients the same number of samples (± 1), as far as their classes allow;
            ``power_law`` divides each class in proportion to (k + 1)^-exponent for client k.
        exponent: exponent of the power law; 0 is balanced.
        min_samples: minimum per client, spread evenly (± 1) over its classes; larger clients give up samples.
    """

    def __init__(
        self,
        num_clients: int,
        classes: int,
        sizes: Sizes = "balanced",
        exponent: float = 1.0,
        min_samples: int = 1,
    ) -> None:
        super().__init__(num_clients)
        check_number(
            "classes",
            classes,
            at_least=1,
            reason="a client owns at least one",
            setting="data.partition.init_args.classes",
        )
        self.classes = classes
        self.sizes = sizes
        self.exponent = exponent
        self.min_samples = checked_minimum(min_samples)
        self._shares = client_shares(num_clients, sizes, exponent)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self.check_enough(labels, self.min_samples)
        present, samples_of = samples_by_class(labels)
        check_classes(self.classes, len(present))
        generator = generator_for("partition", seed)
        hands = deal(np.arange(len(present)), self.num_clients, self.classes, generator)
        cards = np.concatenate(hands)
        clients = np.repeat(np.arange(self.num_clients), self.classes)
        by_class = np.argsort(cards, kind="stable")
        owners_of = cut(clients[by_class], np.bincount(cards, minlength=len(present)))
        totals = [len(samples) for samples in samples_of]
        sizes = [self._sizes(*each) for each in zip(present, owners_of, totals, strict=True)]
        if np.ptp(self._shares) == 0:
            evened = even_out(clients[by_class], cards[by_class], np.concatenate(sizes), self._minimum)
            sizes = list(cut(evened, owners_of.sizes))
        parts: list[list[Indices]] = [[] for _ in hands]
        for label, owners, samples, shares in zip(present, owners_of, samples_of, sizes, strict=True):
            samples = generator.permutation(samples)
            if len(owners) == 0:
                rank_zero_warn(
                    f"class {label} belongs to no client: {self.num_clients} clients x {self.classes} classes"
                    f" do not cover all {len(present)} classes of the data set; its {len(samples)} samples are unused"
                )
                continue
            for client, part in zip(owners.tolist(), cut(samples, shares), strict=True):
                parts[client].append(part)
        return [generator.permutation(np.concatenate(part)) for part in parts]

    @property
    def _minimum(self) -> int:
        """The minimum number of samples per client and class."""
        return math.ceil(self.min_samples / self.classes)

    def _sizes(self, label: Any, owners: np.ndarray, total: int) -> np.ndarray:
        """Return how many of a class's samples each of its owners gets."""
        minimum = self._minimum
        if len(owners) == 0:
            return np.zeros(0, dtype=np.int64)
        if len(owners) * minimum > total:
            short = "be empty" if minimum == 1 else f"have fewer than min_samples={self.min_samples}"
            raise MisconfigurationError(
                f"class {label} has {total} samples for {len(owners)} clients, so some would {short}:"
                " set data.partition.init_args.num_clients or classes lower" + (", or min_samples" * (minimum > 1))
            )
        return whole_sizes(total, self._shares[owners], minimum)


def even_out(clients: np.ndarray, classes: np.ndarray, sizes: np.ndarray, minimum: int) -> np.ndarray:
    """Move samples between the owners of a class until all clients have equal numbers (± 1), or as close as possible.

    Client k has too many samples, client j too few. If they share a class, k gives samples of that class to j;
    otherwise, samples are passed on through other clients. This is a maximum-flow problem.

    Args:
        clients: the owners, one entry per client and class that it owns, from 0 without a gap.
        classes: the class of each entry, from 0.
        sizes: the number of samples of each entry.
        minimum: minimum number of samples per entry.
    """
    from scipy.sparse import coo_array  # imported late, because most partitions do not need it
    from scipy.sparse.csgraph import maximum_flow

    has = np.bincount(clients, sizes).astype(np.int64)
    wants = np.full(len(has), sizes.sum() // len(has))
    wants[np.argsort(-has, kind="stable")[: sizes.sum() - wants.sum()]] += 1
    excess = has - wants
    if not excess.any():
        return sizes
    first_class = len(has)
    source = first_class + classes.max() + 1
    gives, takes = np.flatnonzero(excess > 0), np.flatnonzero(excess < 0)
    # From the source to clients with too many, from a client to its classes and back, and from the others to the sink.
    tails = np.concatenate([np.full(len(gives), source), clients, first_class + classes, takes])
    heads = np.concatenate([gives, first_class + classes, clients, np.full(len(takes), source + 1)])
    limit, total = 1, excess[gives].sum()
    while True:  # the smallest limit on what an entry loses or gains keeps a client's classes about equal in size
        between = [np.minimum(sizes - minimum, limit), np.full(len(sizes), limit)]
        room = np.concatenate([excess[gives], *between, -excess[takes]]).astype(np.int32)
        network = coo_array((room, (tails, heads)), shape=(source + 2, source + 2)).tocsr()
        found = maximum_flow(network, source, source + 1)
        if found.flow_value == total or limit >= total:
            return sizes - np.asarray(found.flow[clients, first_class + classes]).ravel()
        limit *= 2


def deal(classes: np.ndarray, players: int, cards: int, generator: np.random.Generator) -> list[list[int]]:
    """Deal ``cards`` distinct classes to each player from one shuffled deck after another."""
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
