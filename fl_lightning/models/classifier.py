"""A LightningModule for any network that classifies."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall

from fl_lightning.models.normalisation import Normalisation, with_normalisation


class Classifier(LightningModule):
    """Cross-entropy on a network's logits; logs loss, accuracy, macro precision, recall and F1.

    Args:
        net: maps a batch of inputs to logits.
        num_classes: how many classes there are.
        optimizer: makes the clients' optimiser from their parameters; by default SGD with learning rate 0.05.
        lr_scheduler: makes a learning-rate scheduler from that optimiser. It steps after every local epoch and begins
            anew in every round; for one that goes on from round to round see the client callbacks.
        normalisation: replaces the network's: ``group`` (Fed-GN), ``layer``, ``none``; ``batch`` leaves it as it is.
        top_k: logs also how often the label is among the ``k`` most likely classes, as ``top<k>_accuracy``.
    """

    def __init__(
        self,
        net: nn.Module,
        num_classes: int = 10,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        normalisation: Normalisation = "batch",
        top_k: int | None = None,
    ) -> None:
        super().__init__()
        # The command line saves how net and optimiser are made; the objects themselves do not belong into a checkpoint.
        from_command_line = _given_hyperparameters.get() is not None
        self.save_hyperparameters(ignore=[] if from_command_line else ["net", "optimizer", "lr_scheduler"])
        self.net = with_normalisation(net, normalisation)
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        metrics = _metrics(num_classes, top_k)
        self.val_metrics = metrics.clone(prefix="val/")
        self.test_metrics = metrics.clone(prefix="test/")

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The mean cross-entropy of a batch."""
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Logs ``val/...``."""
        self._evaluate("val", self.val_metrics, batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Logs ``test/...``."""
        self._evaluate("test", self.test_metrics, batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The most likely classes."""
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        classes: Tensor = self(inputs).argmax(dim=1)
        return classes

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The clients' optimiser and scheduler, fresh in every round."""
        optimizer = self.optimizer(self.parameters()) if self.optimizer else torch.optim.SGD(self.parameters(), lr=0.05)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise MisconfigurationException(
                "lr_scheduler=ReduceLROnPlateau waits for a metric, but a client has none to show, for validation is"
                " the server's: use a scheduler that goes by epochs, such as StepLR"
            )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _evaluate(self, stage: str, metrics: MetricCollection, batch: list[Tensor]) -> None:
        inputs, labels = batch
        logits = self(inputs)
        metrics.update(logits, labels)
        self.log(f"{stage}/loss", functional.cross_entropy(logits, labels), batch_size=len(labels))
        for name, metric in metrics.items(copy_state=False):  # shared among metrics that count the same
            self.log(name, metric, prog_bar=name == "val/accuracy", batch_size=len(labels))


def _metrics(num_classes: int, top_k: int | None) -> MetricCollection:
    metrics: dict[str, Metric | MetricCollection] = {
        "accuracy": MulticlassAccuracy(num_classes, average="micro"),
        "macro_precision": MulticlassPrecision(num_classes),
        "macro_recall": MulticlassRecall(num_classes),
        "macro_f1": MulticlassF1Score(num_classes),
    }
    # Metrics of a group are counted once. Left to itself, torchmetrics groups those that agree on the first batch.
    groups = [["accuracy"], ["macro_precision", "macro_recall", "macro_f1"]]
    if top_k is not None:
        if not 1 < top_k < num_classes:
            raise MisconfigurationException(
                f"top_k={top_k}, but there are {num_classes} classes: set top_k from 2 to {num_classes - 1}"
            )
        name = f"top{top_k}_accuracy"
        metrics[name] = MulticlassAccuracy(num_classes, top_k=top_k, average="micro")
        groups.append([name])
    return MetricCollection(metrics, compute_groups=groups)
