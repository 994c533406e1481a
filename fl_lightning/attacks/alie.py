"""ALIE: bad clients agree on an update that is just inside the spread of the good clients' updates.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019
(algorithm 3). https://arxiv.org/abs/1902.06156
"""

from collections.abc import Iterable, Iterator
from statistics import NormalDist

import torch

from fl_lightning.attacks.base import Attack
from fl_lightning.attacks.updates import with_parameters
from fl_lightning.core.distributed import sum_over_ranks
from fl_lightning.core.limits import check_number
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout, exact_dtype
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms import UploadTransform


class ALittleIsEnough(Attack, UploadTransform):
    """All bad clients of a round send μ - z σ, with μ and σ computed for each parameter over the bad clients.

    As in the paper, they know only each other's honestly trained models, from which they estimate μ and σ. Their
    updates are held back until all clients of the round have trained. In a distributed run, the ranks exchange two sums
    over the bad clients. Statistics and counters stay as the client trained them. A bad client that is alone in its
    round has no spread to estimate, so it sends the model that it trained.

    Args:
        share: the share of all clients that is bad.
        z: how many standard deviations to deviate. By default, it is the paper's z_max for the round's number of
            clients and of bad clients: enough good clients are further out for the bad ones to look like a majority.
    """

    def __init__(self, share: float, z: float | None = None) -> None:
        super().__init__(share)
        if z is not None:
            check_number("z", z, at_least=0, setting="z of ALittleIsEnough")
        self.z = z

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        """Return the update unchanged, because a single client has no other client to agree with."""
        return update

    def apply(self, updates: Iterable[ClientUpdate], round: Round, layout: StateLayout) -> Iterator[ClientUpdate]:
        """Yield the good clients as they come, and then the bad ones."""
        good, bad = 0, []
        for update in updates:
            if self.is_bad(update.client, round):
                bad.append(update)
            else:
                good += 1
                yield update
        device = next((value.device for value in round.start.values()), torch.device("cpu"))
        rows = [layout.flatten(update.state).parameters for update in bad]
        total, squares = (layout.zeros(exact_dtype(device), device).parameters for _ in range(2))
        counts = to_device(torch.tensor([good, len(bad)], dtype=total.dtype), device)
        for row in rows:
            total += row
        sum_over_ranks(counts, total)
        num_good, num_bad = map(int, counts.tolist())
        if not num_bad:
            return
        mean = total / num_bad
        for row in rows:
            squares += (row - mean).square()
        sum_over_ranks(squares)
        z = z_max(num_good + num_bad, num_bad) if self.z is None else self.z
        for update in bad:
            yield with_parameters(update, mean - z * (squares / num_bad).sqrt(), layout)


def z_max(clients: int, bad: int) -> float:
    """Return the largest z for which s good clients are expected to be further out than the bad ones.

    s = ⌊n/2 + 1⌋ - m is how many good clients the m bad ones of n need for a majority (algorithm 3, lines 1 and 2). z
    is 0 if there are too few bad clients for any deviation. If they are a majority by themselves, s is 1, because
    otherwise z would have no limit.
    """
    good = clients - bad
    needed = max(clients // 2 + 1 - bad, 1)
    covered = (good - needed) / good if good else 0.0
    return NormalDist().inv_cdf(covered) if covered > 0.5 else 0.0
