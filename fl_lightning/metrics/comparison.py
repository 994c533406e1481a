"""The base of the metrics that compare each client's update with the average update."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from fl_lightning.core.scratch import Scratch
from fl_lightning.core.state import StateLayout, exact_dtype, exact_vector


class AverageComparison(Metric, ABC):
    """Keeps the round's updates, in float32, until their average is known.

    Updates stay on their rank: the ranks exchange only the sum of the updates and a few numbers per client.

    Args:
        model: a model with the same names and shapes as the states to measure; it is not kept.
    """

    full_state_update = False
    weight: Tensor
    update_sum: Tensor
    updates: list[Tensor]
    reports: list[Tensor]

    def __init__(self, model: nn.Module, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layout = StateLayout(model)
        self._scratch = Scratch()
        start = self.layout.flatten(model.state_dict()).parameters
        dtype = exact_dtype(start.device)
        self.add_state("weight", torch.zeros((), dtype=dtype, device=start.device), dist_reduce_fx="sum")
        self.add_state("update_sum", torch.zeros_like(start, dtype=dtype), dist_reduce_fx="sum")
        self.add_state("updates", [])
        self.add_state("reports", [])

    @abstractmethod
    def compare(self, average: Tensor, updates: Iterator[Tensor]) -> list[float]:
        """Return the number to report for each update. They share memory, which the next one overwrites."""

    def _add(
        self,
        start: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        weight: float,
        *report: float,
        difference: Tensor | None = None,
    ) -> None:
        names = self.layout.parameters
        update = exact_vector(state, names) - exact_vector(start, names) if difference is None else difference
        self.weight += weight
        self.update_sum.add_(update, alpha=weight)
        self.updates.append(update.to(torch.float32, copy=True))
        self.reports.append(torch.tensor([weight, *report], dtype=self.weight.dtype))

    def _rows(self, width: int) -> Tensor:
        """Return one row per client of all ranks: the number from :meth:`compare`, the weight and the report."""
        average = self.update_sum / self.weight
        numbers = self.compare(average, (self._scratch.copy(update, average.dtype) for update in self.updates))
        reports = torch.stack(self.reports) if self.reports else torch.zeros(0, width - 1, dtype=average.dtype)
        rows = torch.column_stack([torch.tensor(numbers, dtype=average.dtype), reports])
        if self._is_synced:
            gather = self.dist_sync_fn or gather_all_tensors
            rows = torch.cat(gather(rows.to(average.device), group=self.process_group)).cpu()
        return rows

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Sum over the ranks when :meth:`compute` runs in a distributed run, but leave the updates on their ranks."""
        updates, reports = self.updates, self.reports
        self.updates, self.reports = [], []
        super()._sync_dist(*args, **kwargs)
        self.updates, self.reports = updates, reports
