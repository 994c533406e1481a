"""What keeps ranks from sharing the batches of an evaluation, as far as this is visible without running a step."""

from collections.abc import Sequence
from inspect import signature

from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum
from torchmetrics.wrappers.abstract import WrapperMetric

from fl_lightning._lightning.names import Callback, LightningModule, ProgressBar, is_overridden

#: reductions of torchmetrics whose result does not depend on which rank had which batch
_EXACT = (dim_zero_sum, dim_zero_max, dim_zero_min, dim_zero_cat)
_OWN_PACKAGES = ("pytorch_lightning", "lightning", "fl_lightning")


def hook_that_sees_batches(module: LightningModule, callbacks: Sequence[Callback], stage: str) -> str | None:
    """Return an obstacle if a hook may use what was collected from all batches, otherwise None."""
    if "dataloader_iter" in signature(getattr(module, f"{stage}_step")).parameters:
        return f"{type(module).__name__}.{stage}_step fetches its batches itself"
    for moment in ("batch_start", "batch_end", "epoch_end", "end"):
        if is_overridden(f"on_{stage}_{moment}", module):
            return f"{type(module).__name__}.on_{stage}_{moment} may use what the steps on all batches have collected"
    for callback in callbacks:
        for moment in ("batch_start", "batch_end"):
            name = f"on_{stage}_{moment}"
            package = getattr(callback, name).__module__.partition(".")[0]
            if not isinstance(callback, ProgressBar) and package not in _OWN_PACKAGES:
                return f"{type(callback).__name__}.{name} may collect something from all batches"
    return None


def metric_without_exact_sum(module: LightningModule) -> str | None:
    """Return an obstacle if a metric's states over parts of the data do not add up to its states over all data."""
    for name, metric in module.named_modules():
        if not isinstance(metric, Metric):
            continue
        inexact = next((state for state, reduction in metric._reductions.items() if reduction not in _EXACT), None)
        if isinstance(metric, WrapperMetric) or inexact is not None:
            return f"the states of the metric {name} ({type(metric).__name__}) cannot be added up over processes"
    return None
