"""What a module logs in validation and test, synchronised over ranks that evaluated different batches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from fl_lightning._lightning.names import LightningModule
from fl_lightning._lightning.package import PACKAGE
from fl_lightning._lightning.placed_results import PlacedResults
from fl_lightning.core.distributed import gather_objects

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
else:
    from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric

_STEPS = ("validation_step", "test_step")
#: arguments of ``self.log`` that have no effect, because values are synchronised once, after the last batch
_SYNCHRONISATION = ("sync_dist", "sync_dist_fn", "sync_dist_group", "rank_zero_only")
_ARGUMENTS = ("name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
#: the states of a torchmetrics object, and how often it was updated
_States = dict[str, Any]
_COUNT = "_update_count"


@dataclass
class _Logged:
    """What one rank logged under a key.

    Args:
        arguments: arguments of ``self.log``, except the value.
        metric: name of the module's attribute that was logged, if it is a torchmetrics object.
        value: the sum, the weighted sum, the largest or the smallest of the rank's values.
        batch_size: the sum of the weights, if the mean is logged.
    """

    arguments: dict[str, Any]
    metric: str | None
    value: float = 0.0
    batch_size: int = 0


class EvaluationResults(PlacedResults):
    """Lightning's collection of logged values, with a synchronisation that does not need ``sync_dist``.

    The values are the same as in one process, even if ranks have different numbers of batches or have not logged some
    values.
    """

    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **{name: value for name, value in kwargs.items() if name not in _SYNCHRONISATION})

    def synchronise(self, module: LightningModule) -> None:
        """Replace what was logged in the steps of the current loader with what one process would have logged.

        All ranks must call this. They exchange everything at once, so that no rank waits for a value that another one
        has not logged. Values logged in other hooks are not changed.

        Args:
            module: module that logged the values.
        """
        own = {key: _describe(item) for key, item in self.valid_items() if _step_of(item) in _STEPS}
        everything: list[tuple[dict[str, _Logged], dict[str, _States]]] = [(own, _states_of(module))]
        ranks = gather_objects(everything, module.device)
        with _combined_states(module, [states for _, states in ranks]):
            for key, logged in {key: logged for values, _ in ranks for key, logged in values.items()}.items():
                if key not in own:
                    self._add(logged, module)
                item = self[key]
                if item.is_tensor:
                    _combine(item, [values[key] for values, _ in ranks if key in values])
                item._computed = None
                item.compute()

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
        return _Logged(arguments, item.meta.metric_attribute)
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


def _metrics_of(module: LightningModule) -> dict[str, Metric]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, Metric)}


def _states_of(module: LightningModule) -> dict[str, _States]:
    """Return the states of the module's metrics that have been updated, on the CPU."""
    return {
        name: {state: _on(torch.device("cpu"), getattr(metric, state)) for state in (*metric._reductions, _COUNT)}
        for name, metric in _metrics_of(module).items()
        if metric.update_called
    }


@contextmanager
def _combined_states(module: LightningModule, ranks: Sequence[dict[str, _States]]) -> Iterator[None]:
    """Give the module's metrics the states over all ranks, and restore their own states on exit."""
    own: list[tuple[Metric, _States]] = []
    try:
        for name, metric in _metrics_of(module).items():
            parts = [states[name] for states in ranks if name in states]
            if not parts:
                continue
            own.append((metric, {state: getattr(metric, state) for state in parts[0]}))
            for state, reduction in {**metric._reductions, _COUNT: sum}.items():
                setattr(metric, state, _on(metric.device, _reduce(reduction, [part[state] for part in parts])))
            metric._computed = None
        yield
    finally:
        for metric, states in own:
            for state, value in states.items():
                setattr(metric, state, value)


def _reduce(reduction: Any, values: list[Any]) -> Any:
    """Combine a state of all ranks. The parts of a list come in the order of the batches, as in one process."""
    if isinstance(values[0], list):
        return [item for row in zip_longest(*values) for item in row if item is not None]
    if isinstance(values[0], Tensor) and reduction is not dim_zero_cat:
        return reduction(torch.stack(values))
    return reduction(values)


def _on(device: torch.device, value: Any) -> Any:
    if isinstance(value, list):
        return [_on(device, item) for item in value]
    return value.to(device) if isinstance(value, Tensor) else value
