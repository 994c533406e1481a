"""Selections decide which clients take part in a round. They are pure functions of the seed and the round."""

from abc import ABC, abstractmethod

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for


class Selection(ABC):
    """Base class of selections. A selection decides which clients take part in a round."""

    #: whether a round may have no client at all
    may_be_empty = False

    @abstractmethod
    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        """Return the clients that take part in ``round``, counted from 0."""


class AllClients(Selection):
    """A selection of every client in every round."""

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))


class PoissonClients(Selection):
    """A selection of each client with the same probability, independently of all others and again in every round.

    The number of clients varies, and a round may have none. This is the sampling that differential privacy gains most
    from: see :class:`~fl_lightning.aggregation.DPFedAvg`.

    Args:
        rate: q, the probability that a client takes part in a round.
    """

    may_be_empty = True

    def __init__(self, rate: float) -> None:
        reason, setting = "it is a probability", "data.selection.init_args.rate"
        check_number("rate", rate, above=0, at_most=1, reason=reason, setting=setting)
        self.rate = rate

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        chosen = generator_for("cohort", seed, round).random(num_clients) < self.rate
        return [int(client) for client in chosen.nonzero()[0]]


class _FixedSize(Selection):
    """A selection of the same number of clients, m, in every round.

    Args:
        fraction: C, the fraction of the K clients that takes part: m = max(round(C · K), 1). Set this or ``count``.
        count: m, the number of clients that take part.
    """

    def __init__(self, fraction: float | None = None, count: int | None = None) -> None:
        if (fraction is None) == (count is None):
            raise MisconfigurationError(
                f"fraction={fraction} and count={count}:"
                " set one of them in data.selection.init_args, and the other to null"
            )
        if fraction is not None:
            check_number(
                "fraction",
                fraction,
                above=0,
                at_most=1,
                reason="it is a fraction of the clients",
                setting="data.selection.init_args.fraction",
            )
        if count is not None:
            check_number(
                "count",
                count,
                at_least=1,
                reason="a round has at least one client",
                setting="data.selection.init_args.count",
            )
        self.fraction = fraction
        self.count = count

    def size(self, num_clients: int) -> int:
        """Return m, the number of clients per round."""
        if self.fraction is not None:
            return max(round(self.fraction * num_clients), 1)
        assert self.count is not None
        if self.count > num_clients:
            raise MisconfigurationError(
                f"count={self.count}, but there are {num_clients} clients:"
                f" set data.selection.init_args.count to {num_clients} or fewer"
            )
        return self.count


class RandomClients(_FixedSize):
    """A random selection of m clients, drawn again in every round. All clients are equally likely.

    Args:
        fraction: C, the fraction of the K clients that takes part: m = max(round(C · K), 1). Set this or ``count``.
        count: m, the number of clients that take part.
    """

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        chosen = generator_for("cohort", seed, round).choice(num_clients, self.size(num_clients), replace=False)
        return sorted(int(client) for client in chosen)


class SequentialClients(_FixedSize):
    """A selection of the next m clients in order, starting over after the last. All take part equally often (± 1).

    Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (algorithm 1).

    Args:
        fraction: C, the fraction of the K clients that takes part: m = max(round(C · K), 1). Set this or ``count``.
        count: m, the number of clients that take part.
    """

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        size = self.size(num_clients)
        return [(round * size + position) % num_clients for position in range(size)]
