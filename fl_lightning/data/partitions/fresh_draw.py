"""Clients whose data changes from round to round.

Zhuo, Li. FedNS: Improving Federated Learning for Collaborative Image Classification on Mobile Clients. 2021, section 4.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, RedrawnPartition
from fl_lightning.data.partitions.grouping import samples_by_class


class FreshDraw(RedrawnPartition):
    """A partition in which every client draws a few new samples of every class in every round.

    Clients draw independently of each other. For each client and class, the number of samples is drawn uniformly from
    ``low`` to ``high``. A client never has a sample twice in the same round, but two clients may draw the same sample.

    Args:
        num_clients: number of clients.
        low: minimum number of samples per class.
        high: maximum number of samples per class; ``high`` equal to ``low`` is the paper's IID setting.
    """

    def __init__(self, num_clients: int, low: int, high: int) -> None:
        super().__init__(num_clients)
        check_number("low", low, at_least=1, setting="data.partition.init_args.low")
        check_number("high", high, at_least=low, reason=f"low={low}", setting="data.partition.init_args.high")
        self.low = low
        self.high = high

    def draw(self, labels: np.ndarray, seed: int, round: int) -> Sequence[Indices]:
        present, samples_of = samples_by_class(labels)
        for label, samples in zip(present, samples_of, strict=True):
            if self.high > len(samples):
                raise MisconfigurationError(
                    f"high={self.high}, but class {label} has {len(samples)} samples:"
                    f" set data.partition.init_args.high to {len(samples)} or fewer"
                )

        def draw_client(client: int) -> Indices:
            generator = generator_for("partition", seed, round, client)
            counts = generator.integers(self.low, self.high, size=len(present), endpoint=True)
            drawn = [generator.choice(s, n, replace=False) for s, n in zip(samples_of, counts, strict=True)]
            return np.concatenate(drawn)

        return _LazyDraws(self.num_clients, draw_client)


class _LazyDraws(Sequence[Indices]):
    """One array per client, drawn when it is first requested, because a round needs only its cohort's samples.

    Args:
        num_clients: number of clients.
        draw: draws one client's samples.
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
