"""Selections: which clients take part in a round, a pure function of the seed and the round."""

from abc import ABC, abstractmethod

from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.randomness import generator_for


class Selection(ABC):
    """Base of all selections."""

    @abstractmethod
    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The clients of ``round``, counted from 0."""


class AllClients(Selection):
    """Every client takes part in every round."""

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))


class _Some(Selection):
    """m clients a round.

    Args:
        fraction: C, the share of the clients that takes part: m = max(round(C · K), 1). Or give ``count``.
        count: m itself.
    """

    def __init__(self, fraction: float | None = None, count: int | None = None) -> None:
        if (fraction is None) == (count is None):
            raise MisconfigurationException(
                f"fraction={fraction} and count={count}: set one of them in data.selection.init_args, the other to null"
            )
        if fraction is not None and not 0 < fraction <= 1:
            raise MisconfigurationException(
                f"fraction={fraction}, but it is a share of clients: set data.selection.init_args.fraction in (0, 1]"
            )
        if count is not None and count < 1:
            raise MisconfigurationException(
                f"count={count}, but a round has at least one client: set data.selection.init_args.count to 1 or more"
            )
        self.fraction = fraction
        self.count = count

    def size(self, num_clients: int) -> int:
        """m, the number of clients a round."""
        if self.fraction is not None:
            return max(round(self.fraction * num_clients), 1)
        assert self.count is not None
        if self.count > num_clients:
            raise MisconfigurationException(
                f"count={self.count}, but there are {num_clients} clients:"
                f" set data.selection.init_args.count to {num_clients} or fewer"
            )
        return self.count


class RandomClients(_Some):
    """m clients drawn anew every round, all equally likely.

    Args:
        fraction: C, the share of the clients that takes part: m = max(round(C · K), 1). Or give ``count``.
        count: m itself.
    """

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        chosen = generator_for("cohort", seed, round).choice(num_clients, self.size(num_clients), replace=False)
        return sorted(int(client) for client in chosen)


class SequentialClients(_Some):
    """The next m clients in order, going round: at any time all have taken part equally often (± 1).

    Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (algorithm 1).

    Args:
        fraction: C, the share of the clients that takes part: m = max(round(C · K), 1). Or give ``count``.
        count: m itself.
    """

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        size = self.size(num_clients)
        return [(round * size + position) % num_clients for position in range(size)]
