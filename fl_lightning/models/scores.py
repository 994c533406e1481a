"""What the ``Classifier`` measures in validation and test."""

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision, MulticlassRecall

from fl_lightning.core.errors import MisconfigurationError


class MeanCrossEntropy(Metric):
    """The mean cross-entropy over all samples. It is cheaper than calling ``self.log`` for every batch."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch."""
        self.total = self.total + functional.cross_entropy(logits, labels) * len(labels)
        self.count = self.count + len(labels)

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.count


class Accuracy(MulticlassRecall):
    """The share of correct predictions, computed from the counts per class that the macro metrics need too."""

    tp: Tensor
    fp: Tensor
    fn: Tensor
    tn: Tensor

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch per class. torchmetrics, which handles more cases, takes four times as long."""
        classes = self.num_classes
        assert classes is not None
        pairs = labels * classes + logits.argmax(dim=1)
        table = pairs.new_zeros(classes * classes).scatter_add_(0, pairs, torch.ones_like(pairs))
        table = table.view(classes, classes)  # a row per label, a column per prediction
        right, predicted, labelled = table.diagonal(), table.sum(dim=0), table.sum(dim=1)
        self.tp = self.tp + right
        self.fp = self.fp + predicted - right
        self.fn = self.fn + labelled - right
        self.tn = self.tn + (len(labels) - predicted - labelled + right)

    def compute(self) -> Tensor:
        """Return the share of correct predictions."""
        return self.tp.sum() / (self.tp + self.fn).sum()


def classification_metrics(num_classes: int, top_k: int | None) -> MetricCollection:
    """Return loss, accuracy, macro precision, recall and F1, and the top-k accuracy if ``top_k`` is set."""
    metrics: dict[str, Metric | MetricCollection] = {
        "loss": MeanCrossEntropy(),
        "accuracy": Accuracy(num_classes, validate_args=False),
        "macro_precision": MulticlassPrecision(num_classes, validate_args=False),
        "macro_recall": MulticlassRecall(num_classes, validate_args=False),
        "macro_f1": MulticlassF1Score(num_classes, validate_args=False),
    }
    # A group shares the state of its first metric. By default, torchmetrics groups all metrics that agree on one batch.
    loss, *counts = metrics
    groups = [[loss], counts]
    if top_k is not None:
        if not 1 < top_k < num_classes:
            raise MisconfigurationError(
                f"top_k={top_k}, but there are {num_classes} classes: set top_k from 2 to {num_classes - 1}"
            )
        name = f"top{top_k}_accuracy"
        metrics[name] = MulticlassAccuracy(num_classes, top_k=top_k, average="micro", validate_args=False)
        groups.append([name])
    return MetricCollection(metrics, compute_groups=groups)
