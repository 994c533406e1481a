"""Clients whose data changes from round to round.

Zhuo, Li. FedNS: Improving Federated Learning for Collaborative Image Classification on Mobile Clients. 2021, section 4.
"""

from collections.abc import Sequence

import numpy as np
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data.partition import Draws, Indices, RedrawnPartition, samples_by_class
from fl_lightning.randomness import generator_for


class FreshDraw(RedrawnPartition):
    """Every client draws a few samples of every class anew in every round, independently of the others.

    How many is drawn too, from ``low`` to ``high`` for each client and class. No sample is twice within a client; two
    clients may draw the same.

    Args:
        num_clients: how many clients there are.
        low: the fewest samples of a class.
        high: the most; as many as ``low`` is the paper's IID setting.
    """

    def __init__(self, num_clients: int, low: int, high: int) -> None:
        super().__init__(num_clients)
        if not 1 <= low <= high:
            raise MisconfigurationException(
                f"low={low} and high={high}: set data.partition.init_args.low to 1 or more, and high no lower"
            )
        self.low = low
        self.high = high

    def draw(self, labels: np.ndarray, seed: int, round: int) -> Sequence[Indices]:
        present, samples_of = samples_by_class(labels)
        for label, samples in zip(present, samples_of, strict=True):
            if self.high > len(samples):
                raise MisconfigurationException(
                    f"high={self.high}, but class {label} has {len(samples)} samples:"
                    f" set data.partition.init_args.high to {len(samples)} or fewer"
                )

        def of_client(client: int) -> Indices:
            generator = generator_for("partition", seed, round, client)
            counts = generator.integers(self.low, self.high, size=len(present), endpoint=True)
            drawn = [generator.choice(s, n, replace=False) for s, n in zip(samples_of, counts, strict=True)]
            return np.concatenate(drawn)

        return Draws(self.num_clients, of_client)
