"""Partitions: which samples a client owns, a pure function of the labels and a seed."""

import inspect
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from fl_lightning.data.sizes import Sizes, client_shares, cut, whole_sizes
from fl_lightning.randomness import generator_for

#: how often Dirichlet draws, and how many numbers in all: a second or two for many clients
_MOST_DRAWS = 1000
_MOST_DRAWN_NUMBERS = 50_000_000

Indices = np.ndarray


class Partition(ABC):
    """Base of all partitions.

    Args:
        num_clients: how many clients share the data.
    """

    #: whether it looks at the labels; one that does not works for any data
    needs_labels = True
    #: the column of the source (``source.columns[column]``, one value a sample) that it looks at instead of the labels
    column: str | None = None

    def __init__(self, num_clients: int) -> None:
        if num_clients < 1:
            raise MisconfigurationException(
                f"num_clients={num_clients}, but a federation has at least one client:"
                " set data.partition.init_args.num_clients to 1 or more"
            )
        self.num_clients = num_clients

    @abstractmethod
    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        """The indices of each client's samples, one array a client.

        Args:
            labels: the class of every sample; for a partition with a ``column`` the values of that.
            seed: the same seed gives the same split.
        """

    def __repr__(self) -> str:
        """The name and the arguments that are not the defaults, as far as they are kept under their names."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        values = {p.name: (getattr(self, p.name), p.default) for p in parameters if hasattr(self, p.name)}
        arguments = ", ".join(f"{name}={_SHORT.repr(v)}" for name, (v, default) in values.items() if v != default)
        return f"{type(self).__name__}({arguments})"

    def _check_enough(self, labels: np.ndarray, min_samples: int = 1) -> None:
        if self.num_clients > len(labels):
            raise MisconfigurationException(
                f"num_clients={self.num_clients}, but the data set has {len(labels)} samples:"
                f" set data.partition.init_args.num_clients to {len(labels)} or fewer"
            )
        most = len(labels) // self.num_clients
        if min_samples > most:
            raise MisconfigurationException(
                f"min_samples={min_samples}, but {len(labels)} samples are {most} for each of {self.num_clients}"
                f" clients: set data.partition.init_args.min_samples to {most} or fewer"
            )


class RedrawnPartition(Partition):
    """Base of partitions whose clients draw anew every round.

    What a client has in a round is a pure function of (seed, round, client): no round need know those before.
    """

    @abstractmethod
    def draw(self, labels: np.ndarray, seed: int, round: int) -> Sequence[Indices]:
        """The indices of each client's samples in a round, counted from 0."""

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        """Those of the first round."""
        return self.draw(labels, seed, 0)


class Draws(Sequence[Indices]):
    """One array a client, drawn when it is first asked for: a round needs those of its cohort only.

    Args:
        num_clients: how many there are.
        draw: the samples of a client.
    """

    def __init__(self, num_clients: int, draw: Callable[[int], Indices]) -> None:
        self._num_clients = num_clients
        self._draw = draw
        self._drawn: dict[int, Indices] = {}

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < self._num_clients:
            raise IndexError(f"client {client} of {self._num_clients}")
        if client not in self._drawn:
            self._drawn[client] = self._draw(client)
        return self._drawn[client]

    def __len__(self) -> int:
        return self._num_clients


class IID(Partition):
    """Every client draws from the whole data set; no sample belongs to two.

    Args:
        num_clients: how many clients share the data.
        sizes: ``balanced`` gives all the same number of samples (± 1), ``power_law`` gives client k a share
            proportional to (k + 1)^-exponent.
        exponent: of the power law; 0 is balanced.
        min_samples: every client has at least as many; who has more gives them.
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

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels, self.min_samples)
        order = generator_for("partition", seed).permutation(len(labels))
        return cut(order, whole_sizes(len(labels), self._shares, self.min_samples))


class ClassesPerClient(Partition):
    """Every client owns samples of a few classes only; all samples of a dealt class are shared out, none twice.

    Classes are dealt from shuffled decks: each has the same number of holders (± 1), and a client's are distinct.

    Args:
        num_clients: how many clients share the data.
        classes: how many classes a client owns.
        sizes: ``balanced`` splits a class evenly among its holders, ``power_law`` in proportion to (k + 1)^-exponent
            for client k.
        exponent: of the power law; 0 is balanced.
        min_samples: every client has at least as many, in equal parts (± 1) of its classes; who has more gives them.
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
            raise MisconfigurationException(
                f"classes={classes}, but a client owns at least one: set data.partition.init_args.classes to 1 or more"
            )
        self.classes = classes
        self.sizes = sizes
        self.exponent = exponent
        self.min_samples = checked_minimum(min_samples)
        self._shares = client_shares(num_clients, sizes, exponent)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels, self.min_samples)
        present, samples_of = samples_by_class(labels)
        check_classes(self.classes, len(present))
        generator = generator_for("partition", seed)
        hands = deal(np.arange(len(present)), self.num_clients, self.classes, generator)
        cards = np.concatenate(hands)
        owners = np.repeat(np.arange(self.num_clients), self.classes)
        holders_of = cut(owners[np.argsort(cards, kind="stable")], np.bincount(cards, minlength=len(present)))
        parts: list[list[Indices]] = [[] for _ in hands]
        for label, holders, samples in zip(present, holders_of, samples_of, strict=True):
            samples = generator.permutation(samples)
            if len(holders) == 0:
                rank_zero_warn(
                    f"class {label} belongs to no client: {self.num_clients} clients x {self.classes} classes"
                    f" are fewer than the {len(present)} classes of the data set; its {len(samples)} samples are unused"
                )
                continue
            sizes = self._sizes(label, holders, len(samples))
            for client, part in zip(holders.tolist(), cut(samples, sizes), strict=True):
                parts[client].append(part)
        return [generator.permutation(np.concatenate(part)) for part in parts]

    def _sizes(self, label: Any, holders: np.ndarray, total: int) -> np.ndarray:
        minimum = math.ceil(self.min_samples / self.classes)
        if len(holders) * minimum > total:
            short = "be empty" if minimum == 1 else f"have fewer than min_samples={self.min_samples}"
            raise MisconfigurationException(
                f"class {label} has {total} samples for {len(holders)} clients, so some would {short}:"
                " set data.partition.init_args.num_clients or classes lower" + (", or min_samples" * (minimum > 1))
            )
        return whole_sizes(total, self._shares[holders], minimum)


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
        self.alpha = alpha
        self.min_samples = checked_minimum(min_samples)

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        self._check_enough(labels, self.min_samples)
        generator = generator_for("partition", seed)
        _, samples_of = samples_by_class(labels)
        sizes = self._sizes([len(samples) for samples in samples_of], generator)
        clients = np.arange(self.num_clients)
        owners = np.concatenate([np.repeat(clients, of_class) for of_class in sizes])
        return by_owner(np.concatenate([generator.permutation(s) for s in samples_of]), owners, self.num_clients)

    def _sizes(self, totals: list[int], generator: np.random.Generator) -> np.ndarray:
        """How many samples of each class (rows) each client has."""
        draws = min(_MOST_DRAWS, max(_MOST_DRAWN_NUMBERS // (self.num_clients * len(totals)), 10))
        for _ in range(draws):
            sizes = np.stack([self._split(total, generator) for total in totals])
            if sizes.sum(axis=0).min() >= self.min_samples:
                return sizes
        raise MisconfigurationException(
            f"alpha={self.alpha} gave a client with fewer than min_samples={self.min_samples} of {sum(totals)} samples"
            f" in {draws} draws: set alpha higher, or num_clients or min_samples lower"
        )

    def _split(self, total: int, generator: np.random.Generator) -> np.ndarray:
        if math.isinf(self.alpha):
            shares = np.full(self.num_clients, 1 / self.num_clients)
        else:
            shares = generator.dirichlet(np.full(self.num_clients, self.alpha))
        ends = np.round(np.cumsum(shares) * total).astype(np.int64)
        ends[-1] = total
        return np.diff(ends, prepend=0)


def checked_minimum(min_samples: int) -> int:
    """A client has at least one sample."""
    if min_samples < 1:
        raise MisconfigurationException(
            f"min_samples={min_samples}: set data.partition.init_args.min_samples to 1 or more"
        )
    return min_samples


def check_classes(classes: int, present: int) -> None:
    """No client can own more classes than there are."""
    if classes > present:
        raise MisconfigurationException(
            f"classes={classes}, but the data set has {present}:"
            f" set data.partition.init_args.classes to {present} or fewer"
        )


def samples_by_class(labels: np.ndarray) -> tuple[np.ndarray, list[Indices]]:
    """The classes that occur, in order, and the samples of each, in order."""
    present, counts = np.unique(labels, return_counts=True)
    return present, cut(np.argsort(labels, kind="stable"), counts)


def by_owner(samples: Indices, owners: np.ndarray, num_clients: int) -> list[Indices]:
    """Each client's samples, given the owner of each sample."""
    return cut(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))


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


_SHORT = reprlib.Repr()
_SHORT.maxlist = 12
_SHORT.maxlevel = 1
_SHORT.maxstring = 60
