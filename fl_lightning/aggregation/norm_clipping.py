"""Norm clipping: updates that are longer than a threshold are shortened to it.

Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? Workshop on Federated Learning for Data
Privacy and Confidentiality, NeurIPS 2019 (section 4). https://arxiv.org/abs/1911.07963
"""

import torch
from torch import Tensor

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.streaming import StreamingAggregator
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import FlatState
from fl_lightning.core.update import ClientUpdate


class NormClipping(StreamingAggregator):
    """w ← w + Σ p_k Δ_k / max(1, ‖Δ_k‖ / M): a client moves the model by at most p_k M.

    The change of the statistics, such as BatchNorm's running means, is clipped separately, to the same threshold.

    Args:
        max_norm: M, the threshold.
    """

    def __init__(self, max_norm: float) -> None:
        reason, setting = "it is the length of an update", f"max_norm of {type(self).__name__}"
        check_number("max_norm", max_norm, above=0, reason=reason, setting=setting)
        self.max_norm = max_norm

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        parameters = self.start.parameters + self.clip(self.update_of(state))
        before = self.start.statistics
        moved = torch.where(before.isfinite(), state.statistics - before, 0)  # a mask of -inf cannot be moved a little
        statistics = before + self.clip(moved)
        super().accumulate(FlatState(parameters, statistics, state.counters), update, weight)

    def clip(self, vector: Tensor) -> Tensor:
        """Return the vector, shortened to the threshold if it is longer."""
        return vector * (self.max_norm / vector.norm()).clamp(max=1.0)

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean))
