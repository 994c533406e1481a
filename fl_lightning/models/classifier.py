"""A LightningModule for any network that returns logits."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.cli_names import LRSchedulerCallable, OptimizerCallable
from fl_lightning._lightning.hparams import made_by_command_line
from fl_lightning._lightning.names import LightningModule, OptimizerLRScheduler
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.models.normalisation import Normalisation, with_normalisation
from fl_lightning.models.scores import classification_metrics, update_metrics


class Classifier(LightningModule):
    """A module that trains a network with cross-entropy and logs loss, accuracy, macro precision, recall and F1.

    Args:
        net: network that maps a batch of inputs to logits.
        num_classes: number of classes.
        optimizer: makes a client's optimiser from its parameters; by default, SGD with learning rate 0.05.
        lr_scheduler: makes a learning-rate scheduler from that optimiser. It steps after every local epoch and restarts
            in every round, unless ``client.clock`` is ``run``.
        normalisation: normalisation that replaces the network's own: ``group`` (Fed-GN), ``layer`` or ``none``;
            ``batch`` leaves the network unchanged.
        top_k: also log ``top<k>_accuracy``, how often the label is among the ``k`` most likely classes.
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
        # The command line saves descriptions of net and optimiser. The objects do not belong in a checkpoint.
        self.save_hyperparameters(ignore=[] if made_by_command_line() else ["net", "optimizer", "lr_scheduler"])
        self.net = with_normalisation(net, normalisation)
        self.num_classes = num_classes
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.normalisation = normalisation
        self.top_k = top_k
        metrics = classification_metrics(num_classes, top_k)
        self.val_metrics = metrics.clone(prefix="val/")
        self.test_metrics = metrics.clone(prefix="test/")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch of inputs."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        inputs, labels = batch
        logits = self(inputs)
        if logits.ndim == 2 and logits.shape[1] != self.num_classes:
            raise MisconfigurationError(
                f"num_classes={self.num_classes}, but the network returns {logits.shape[1]} logits per sample:"
                f" set num_classes of {type(self).__name__} to {logits.shape[1]}, or that of the network to"
                f" {self.num_classes}"
            )
        return functional.cross_entropy(logits, labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the metrics of a batch as ``val/...``."""
        self._evaluate(self.val_metrics, batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the metrics of a batch as ``test/...``."""
        self._evaluate(self.test_metrics, batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the most likely class of each input."""
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        classes: Tensor = self(inputs).argmax(dim=1)
        return classes

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return a new optimiser, and a new scheduler if one is set. This is called for every client in every round."""
        optimizer = self.optimizer(self.parameters()) if self.optimizer else torch.optim.SGD(self.parameters(), lr=0.05)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _evaluate(self, metrics: MetricCollection, batch: list[Tensor]) -> None:
        """Update the metrics with a batch and log them."""
        inputs, labels = batch
        update_metrics(metrics, self(inputs), labels)
        first = metrics.get_submodule("loss")
        assert isinstance(first, Metric)
        if first.update_count > 1:  # Lightning computes metrics after the last batch, so logging them once is enough
            return
        for name, metric in metrics.items(copy_state=False):  # the metrics of a group share their state
            self.log(name, metric, prog_bar=name == "val/accuracy", batch_size=len(labels))
