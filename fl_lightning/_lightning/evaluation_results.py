"""What a module logs in validation and test, synchronised over ranks that evaluated different batches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.names import LightningModule
from fl_lightning._lightning.package import PACKAGE
from fl_lightning.core.distributed import gather_objects, is_distributed

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
else:
    from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric

_STEPS = ("validation_step", "test_step")
#: arguments of ``self.log`` that have no effect, because values are synchronised once, after the last batch
_SYNCHRONISATION = ("sync_dist", "sync_dist_fn", "sync_dist_group", "rank_zero_only")
_ARGUMENTS = ("name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


@dataclass
class _Logged:
    """What one rank logged under a key.

    Args:
        arguments: arguments of ``self.log``, except the value.
        metric: name of the module's attribute that was logged, if it is a torchmetrics object.
        complete: whether this object can take part in torchmetrics' own synchronisation.
        value: the sum, the weighted sum, the largest or the smallest of the rank's values.
        batch_size: the sum of the weights, if the mean is logged.
    """

    arguments: dict[str, Any]
    metric: str | None
    complete: bool = False
    value: float = 0.0
    batch_size: int = 0


class EvaluationResults(_ResultCollection):
    """Lightning's collection of logged values, with a synchronisation that does not need ``sync_dist``.

    It gives the values of one process even if ranks have different numbers of batches, or have not logged some values.
    """

    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **{name: value for name, value in kwargs.items() if name not in _SYNCHRONISATION})

    def synchronise(self, module: LightningModule) -> None:
        """Replace what was logged in the steps of the current loader by what one process would have logged.

        All ranks must call this. Values logged in other hooks are not changed.

        Args:
            module: module that logged the values.
        """
        own = {key: _describe(item) for key, item in self.valid_items() if _step_of(item) in _STEPS}
        ranks: list[dict[str, _Logged]] = gather_objects([own])
        for key, logged in {key: logged for rank in ranks for key, logged in rank.items()}.items():
            if key not in own:
                self._add(logged, module)
            item = self[key]
            parts = [rank[key] for rank in ranks if key in rank]
            if item.is_tensor:
                _combine(item, parts)
                item.compute()
            else:
                complete = len(parts) == len(ranks) and all(part.complete for part in parts)
                _compute_over_ranks(item, module, complete)

    def _add(self, logged: _Logged, module: LightningModule) -> None:
        """Add a value that only other ranks have logged."""
        value: Any = torch.zeros((), device=module.device)
        if logged.metric is not None:
            value = module.get_submodule(logged.metric)
        self.log(**logged.arguments, value=value, metric_attribute=logged.metric, batch_size=0)


def _step_of(item: _ResultMetric) -> str:
    """Return the hook that logged a value, without the number of the loader."""
    return item.meta.fx.partition(".")[0]


def _describe(item: _ResultMetric) -> _Logged:
    arguments = {name: getattr(item.meta, name) for name in _ARGUMENTS}
    arguments |= {"fx": _step_of(item), "reduce_fx": item.meta.reduce_fx.__name__}
    if not item.is_tensor:
        return _Logged(arguments, item.meta.metric_attribute, complete=_is_complete(item.value))
    weights = int(item.cumulated_batch_size) if item.meta.is_mean_reduction else 0
    return _Logged(arguments, None, value=item.value.item(), batch_size=weights)


def _combine(item: _ResultMetric, parts: list[_Logged]) -> None:
    """Give a logged value the sums, or the extremes, over all ranks."""
    values = torch.tensor([part.value for part in parts], dtype=torch.float64)
    if item.meta.is_max_reduction:
        total = values.amax()
    elif item.meta.is_min_reduction:
        total = values.amin()
    else:
        total = values.sum()
    item.value = total.to(item.value.dtype).to(item.value.device)
    if item.meta.is_mean_reduction:
        item.cumulated_batch_size = item.cumulated_batch_size.new_tensor(sum(part.batch_size for part in parts))
    item._computed = None


def _compute_over_ranks(item: _ResultMetric, module: LightningModule, complete: bool) -> None:
    """Compute a logged torchmetrics object from the states of all ranks.

    Args:
        item: the logged object.
        module: module that has the object.
        complete: whether torchmetrics can gather the states itself.
    """
    metrics = [layer for layer in module.modules() if isinstance(layer, Metric)]
    usual = [(metric.distributed_available_fn, metric.dist_sync_fn) for metric in metrics]
    for metric in metrics:
        metric.distributed_available_fn = is_distributed
        metric.dist_sync_fn = metric.dist_sync_fn if complete else _gather_non_empty
        metric._computed = None  # a rank with a cached value would not take part
    try:
        item._computed = None
        item.compute()
    finally:
        for metric, (available, gather) in zip(metrics, usual, strict=True):
            metric.distributed_available_fn, metric.dist_sync_fn = available, gather


def _is_complete(metric: Metric) -> bool:
    """Return whether no state of the metric is an empty list, which torchmetrics cannot gather with those of others."""
    parts = [part for part in metric.modules() if isinstance(part, Metric)]
    states = [getattr(part, name) for part in parts for name in part._reductions]
    return not any(isinstance(state, list) and not state for state in states)


def _gather_non_empty(value: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors of all ranks, except empty ones, which stand for empty lists."""
    tensors: list[Tensor] = gather_objects([value.cpu()])
    return [tensor.to(value.device) for tensor in [part for part in tensors if part.numel()] or tensors]
