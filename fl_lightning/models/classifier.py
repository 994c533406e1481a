"""A LightningModule for any network that classifies."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import OptimizerCallable
from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall

from fl_lightning.models.normalisation import Normalisation, with_normalisation


class Classifier(LightningModule):
    """Cross-entropy on a network's logits; logs loss, accuracy, macro precision, recall and F1.

    Args:
        net: maps a batch of inputs to logits.
        num_classes: how many classes there are.
        optimizer: makes the clients' optimiser from their parameters; by default SGD with learning rate 0.05.
        normalisation: replaces the network's BatchNorm: ``group`` (Fed-GN), ``layer``, ``none``.
    """

    def __init__(
        self,
        net: nn.Module,
        num_classes: int = 10,
        optimizer: OptimizerCallable | None = None,
        normalisation: Normalisation = "batch",
    ) -> None:
        super().__init__()
        # The command line saves how net and optimiser are made; the objects themselves do not belong into a checkpoint.
        from_command_line = _given_hyperparameters.get() is not None
        self.save_hyperparameters(ignore=[] if from_command_line else ["net", "optimizer"])
        self.net = with_normalisation(net, normalisation)
        self.optimizer = optimizer
        metrics = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(num_classes, average="micro"),
                "macro_precision": MulticlassPrecision(num_classes),
                "macro_recall": MulticlassRecall(num_classes),
                "macro_f1": MulticlassF1Score(num_classes),
            }
        )
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

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The clients' optimiser, fresh in every round."""
        if self.optimizer is None:
            return torch.optim.SGD(self.parameters(), lr=0.05)
        return self.optimizer(self.parameters())

    def _evaluate(self, stage: str, metrics: MetricCollection, batch: list[Tensor]) -> None:
        inputs, labels = batch
        logits = self(inputs)
        metrics(logits, labels)
        self.log(f"{stage}/loss", functional.cross_entropy(logits, labels), batch_size=len(labels))
        for name, metric in metrics.items():
            self.log(name, metric, prog_bar=name == "val/accuracy", batch_size=len(labels))
