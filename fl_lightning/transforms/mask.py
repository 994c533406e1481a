"""Sparse uploads with a random mask.

Xing, Ning, Zhou, Liao, Xu, Zou. N-FedAvg: Novel Federated Average Algorithm Based on FedAvg (eq. 3, algorithm 1).
"""

from dataclasses import replace

import torch

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateLayout
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms.base import UploadTransform


class BernoulliMask(UploadTransform):
    """Uploads Δ ⊙ R, where R is a client's random 0/1 mask over the parameters, and all statistics.

    The mask stays the same in all rounds. It follows from the run's seed and the client's number, so it is neither
    stored nor sent, and only the kept entries are uploaded.

    Args:
        keep: P, the probability that an entry is kept. 1 changes nothing.
    """

    def __init__(self, keep: float) -> None:
        if not 0 < keep <= 1:
            raise MisconfigurationError(f"keep={keep}, but it is a probability: set keep of BernoulliMask in (0, 1]")
        self.keep = keep

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        trained = layout.flatten(update.state)
        start = layout.flatten(round.start_of(update.client))
        kept = self.mask(trained.parameters.numel(), round.seed, update.client)
        mask = to_device(kept, trained.parameters.device)
        masked = FlatState(
            torch.where(mask, trained.parameters, start.parameters), trained.statistics, trained.counters
        )
        parts = layout.split(layout.parameters, kept)
        dropped = sum(int((~part).sum()) for name, part in parts.items() if name not in update.unsent)
        saved = dropped * trained.parameters.element_size()
        return replace(
            update,
            state=layout.unflatten(masked, like=update.state),
            num_bytes=(update.num_bytes or 0) - saved,
        )

    def mask(self, size: int, seed: int, client: int) -> torch.Tensor:
        """Return a client's R, which is true where an entry is kept.

        It is drawn on the CPU, because a GPU's generator would draw a different mask.
        """
        generator = torch.Generator().manual_seed(seed_for("mask", seed, client))
        return torch.rand(size, generator=generator) < self.keep
