"""Clients that own samples of only a few classes."""

import math
from typing import Any

import numpy as np

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition, check_classes, checked_minimum
from fl_lightning.data.partitions.grouping import cut, samples_by_class
from fl_lightning.data.partitions.sizes import Sizes, client_shares, whole_sizes


class ClassesPerClient(Partition):
    """A partition in which every client owns samples of only a few classes. No sample has two owners.

    Classes are dealt like cards, from one shuffled deck of all classes after another. A client's classes are distinct,
    and every class has the same number of owners (± 1), who divide all of its samples among themselves.

    Args:
        num_clients: number of clients.
        classes: number of classes per client.
        sizes: ``balanced`` divides a class evenly among its owners; ``power_law`` divides it in proportion to
            (k + 1)^-exponent for client k.
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
        if classes < 1:
            raise MisconfigurationError(
                f"classes={classes}, but a client owns at least one: set data.partition.init_args.classes to 1 or more"
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
        owners_of = cut(clients[np.argsort(cards, kind="stable")], np.bincount(cards, minlength=len(present)))
        parts: list[list[Indices]] = [[] for _ in hands]
        for label, owners, samples in zip(present, owners_of, samples_of, strict=True):
            samples = generator.permutation(samples)
            if len(owners) == 0:
                rank_zero_warn(
                    f"class {label} belongs to no client: {self.num_clients} clients x {self.classes} classes"
                    f" do not cover all {len(present)} classes of the data set; its {len(samples)} samples are unused"
                )
                continue
            sizes = self._sizes(label, owners, len(samples))
            for client, part in zip(owners.tolist(), cut(samples, sizes), strict=True):
                parts[client].append(part)
        return [generator.permutation(np.concatenate(part)) for part in parts]

    def _sizes(self, label: Any, owners: np.ndarray, total: int) -> np.ndarray:
        """Return how many of a class's samples each of its owners gets."""
        minimum = math.ceil(self.min_samples / self.classes)
        if len(owners) * minimum > total:
            short = "be empty" if minimum == 1 else f"have fewer than min_samples={self.min_samples}"
            raise MisconfigurationError(
                f"class {label} has {total} samples for {len(owners)} clients, so some would {short}:"
                " set data.partition.init_args.num_clients or classes lower" + (", or min_samples" * (minimum > 1))
            )
        return whole_sizes(total, self._shares[owners], minimum)


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
