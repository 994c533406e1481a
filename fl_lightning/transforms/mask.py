"""Sparse uploads with a random mask.

Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (eq. 3, algorithm 1).
"""

from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateLayout
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms.base import UploadTransform


class BernoulliMask(UploadTransform):
    """Uploads Δ ⊙ R, where R is a client's random 0/1 mask over the parameters.

    The mask is the same in all rounds. It follows from the run's seed and the client's number, so it is neither
    stored nor sent, and only the kept entries are uploaded.

    Args:
        keep: P, the probability that an entry is kept. 1 changes nothing.
        statistics: whether the mask covers statistics too, such as BatchNorm's running means; by default, all of them
            are uploaded. The mask of the parameters is the same either way.
    """

    compresses = True

    def __init__(self, keep: float, statistics: bool = False) -> None:
        check_number("keep", keep, above=0, at_most=1, reason="it is a probability", setting="keep of BernoulliMask")
        self.keep = keep
        self.statistics = statistics

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        trained = layout.flatten(update.state)
        start = layout.flatten(round.start_of(update.client))
        generator = self._generator(round.seed, update.client)
        kept = self._draw(trained.parameters.numel(), generator)
        parameters = _masked(trained.parameters, start.parameters, kept)
        dropped = layout.split(layout.parameters, ~kept)
        statistics = trained.statistics
        if self.statistics:
            kept = self._draw(statistics.numel(), generator)
            statistics = _masked(statistics, start.statistics, kept)
            dropped |= layout.split(layout.statistics, ~kept)
        sent = {name: part for name, part in dropped.items() if name not in update.unsent}
        saved = sum(int(part.sum()) * update.state[name].element_size() for name, part in sent.items())
        return replace(
            update,
            state=layout.unflatten(FlatState(parameters, statistics, trained.counters), like=update.state),
            num_bytes=(update.num_bytes or 0) - saved,
        )

    def mask(self, size: int, seed: int, client: int) -> Tensor:
        """Return a client's R over the parameters, which is true where an entry is kept."""
        return self._draw(size, self._generator(seed, client))

    def _draw(self, size: int, generator: torch.Generator) -> Tensor:
        return torch.rand(size, generator=generator) < self.keep

    def _generator(self, seed: int, client: int) -> torch.Generator:
        """Return a client's generator. It is on the CPU, because a GPU's would draw a different mask."""
        return torch.Generator().manual_seed(seed_for("mask", seed, client))


def _masked(trained: Tensor, start: Tensor, kept: Tensor) -> Tensor:
    """Return what the server receives: the trained entries that are kept, and the others as they were."""
    return torch.where(to_device(kept, trained.device), trained, start)
