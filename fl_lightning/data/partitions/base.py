"""The base classes of partitions. A partition is a pure function of the labels and a seed."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fl_lightning.core.arguments import changed_arguments
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number

Indices = np.ndarray


class Partition(ABC):
    """Base class of partitions. A partition decides which samples each client owns.

    Args:
        num_clients: number of clients.
    """

    #: Whether the partition depends on the labels. If it does not, it works for any data.
    needs_labels = True
    #: The column of the source (``source.columns[column]``, one value per sample) that replaces the labels.
    column: str | None = None

    def __init__(self, num_clients: int) -> None:
        check_number(
            "num_clients",
            num_clients,
            at_least=1,
            reason="a federation has at least one client",
            setting="data.partition.init_args.num_clients",
        )
        self.num_clients = num_clients

    @abstractmethod
    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        """Return the indices of each client's samples, one array per client.

        Args:
            labels: class of every sample; for a partition with a ``column``, the values of that column.
            seed: seed of the partition; equal seeds yield equal partitions.
        """

    def check_enough(self, labels: np.ndarray, min_samples: int = 1) -> None:
        """Raise an error if there are too few samples for every client to own ``min_samples``."""
        if self.num_clients > len(labels):
            raise MisconfigurationError(
                f"num_clients={self.num_clients}, but the data set has {len(labels)} samples:"
                f" set data.partition.init_args.num_clients to {len(labels)} or fewer"
            )
        most = len(labels) // self.num_clients
        if min_samples > most:
            raise MisconfigurationError(
                f"min_samples={min_samples}, but there are only {most} samples for each of {self.num_clients} clients:"
                f" set data.partition.init_args.min_samples to {most} or fewer"
            )

    def __repr__(self) -> str:
        """Show the arguments that differ from their defaults; long ones are shortened."""
        arguments = ", ".join(f"{name}={_SHORT.repr(value)}" for name, value in changed_arguments(self).items())
        return f"{type(self).__name__}({arguments})"


class RedrawnPartition(Partition):
    """Base class of partitions that give every client new samples in every round.

    A client's samples are a pure function of (seed, round, client), so a round does not depend on earlier ones.
    """

    @abstractmethod
    def draw(self, labels: np.ndarray, seed: int, round: int) -> Sequence[Indices]:
        """Return the indices of each client's samples in ``round``, counted from 0."""

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        """Return the first round's draw."""
        return self.draw(labels, seed, 0)


def checked_minimum(min_samples: int) -> int:
    """Return ``min_samples``, or raise an error if it is below 1."""
    check_number(
        "min_samples",
        min_samples,
        at_least=1,
        reason="a client has at least one sample",
        setting="data.partition.init_args.min_samples",
    )
    return min_samples


def check_classes(classes: int, present: int) -> None:
    """Raise an error if a client is to own more classes than are present in the data."""
    if classes > present:
        raise MisconfigurationError(
            f"classes={classes}, but the data set has {present}:"
            f" set data.partition.init_args.classes to {present} or fewer"
        )


_SHORT = reprlib.Repr()
_SHORT.maxlist = 12
_SHORT.maxlevel = 1
_SHORT.maxstring = 60
