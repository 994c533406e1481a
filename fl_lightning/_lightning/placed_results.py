"""What a module logs, collected without searching every value for tensors to move."""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.package import PACKAGE

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
else:
    from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric


class PlacedResults(_ResultCollection):
    """Lightning's collection of logged values, with a cheaper ``self.log``."""

    def __setitem__(self, key: str, item: _ResultMetric) -> None:
        item.__class__ = _PlacedResult
        super().__setitem__(key, item)


class _PlacedResult(_ResultMetric):
    """A logged value that does not search itself for tensors to move if it is on the device already.

    Lightning searches in every call of ``self.log``, which takes longer than the rest of a small network's step.
    """

    def to(self, *args: Any, **kwargs: Any) -> Any:
        value: Tensor | Metric | None = getattr(self, "value", None)
        if value is not None and not kwargs and args == (value.device,):
            return self
        return super().to(*args, **kwargs)
