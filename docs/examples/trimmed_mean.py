"""Trimmed mean: an average that a few broken or malicious clients cannot move far.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
"""

import torch

from fl_lightning.aggregation import Aggregate, GatheredAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.state import FlatState


class TrimmedMean(GatheredAggregator):
    """Averages each parameter over the clients, without its largest and smallest values.

    Args:
        fraction: fraction of the clients that are left out at each end, below one half; 0 is the plain average.
    """

    def __init__(self, fraction: float = 0.1) -> None:
        if not 0 <= fraction < 0.5:
            raise MisconfigurationError(
                f"fraction={fraction}, but some clients must remain: set fraction of TrimmedMean in [0, 0.5)"
            )
        self.fraction = fraction

    def finish_round(self) -> Aggregate:
        rows = torch.stack([item.state.parameters for item in self.received]).to(self.dtype)
        cut = int(self.fraction * len(rows))
        kept = rows.sort(dim=0).values[cut : len(rows) - cut]
        mean = self.mean
        state = FlatState(kept.mean(dim=0), mean.statistics, mean.counters)
        return Aggregate(self.result(state), metrics={"trimmed_mean/left_out": 2 * cut})
