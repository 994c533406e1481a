"""What the ``Classifier`` measures in validation and test."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
    MulticlassStatScores,
)

from fl_lightning.core.errors import MisconfigurationError


class _Tally(MulticlassStatScores):
    """Counts pairs of label and prediction, and adds up the cross-entropy: all that the metrics below need.

    They form one group of a ``MetricCollection``, so only one of them is updated. torchmetrics' own updates handle more
    cases, and take longer than a batch of a small network.

    Args:
        num_classes: number of classes.
        kwargs: arguments of the torchmetrics class.
    """

    full_state_update = False
    # torchmetrics computes a hash from the states, and torch asks for one whenever it lists the layers of a module.
    __hash__ = object.__hash__
    #: a row per label, a column per prediction
    table: Tensor
    #: the sum of the cross-entropy over all samples
    total: Tensor

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        # No cache: the metrics of a group share their counts, so another one may have added some since.
        super().__init__(num_classes, compute_with_cache=False, **kwargs)
        self._classes = num_classes
        self.add_state("table", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def __setattr__(self, name: str, value: Any) -> None:
        # A group sets some forty attributes per batch. A module would search each of them for parameters and layers.
        object.__setattr__(self, name, value)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch, in place, so that the metrics of a group go on sharing the counts."""
        pairs = labels * self._classes + logits.argmax(dim=1)
        self.table.view(-1).scatter_add_(0, pairs, torch.ones_like(pairs))
        self.total += functional.cross_entropy(logits, labels, reduction="sum")

    def compute(self) -> Tensor:
        """Return the metric."""
        right, predicted, labelled = self.table.diagonal(), self.table.sum(dim=0), self.table.sum(dim=1)
        self.tp, self.fp, self.fn = right, predicted - right, labelled - right
        self.tn = self.table.sum() - predicted - labelled + right
        value: Tensor = super().compute()
        return value


class MacroPrecision(_Tally, MulticlassPrecision):
    """The precision, averaged over the classes."""


class MacroRecall(_Tally, MulticlassRecall):
    """The recall, averaged over the classes."""


class MacroF1(_Tally, MulticlassF1Score):
    """The F1 score, averaged over the classes."""


class Accuracy(_Tally):
    """The share of correct predictions."""

    def compute(self) -> Tensor:
        """Return the share of correct predictions."""
        return self.table.trace() / self.table.sum()


class MeanCrossEntropy(_Tally):
    """The mean cross-entropy over all samples."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.table.sum()


def update_metrics(metrics: MetricCollection, logits: Tensor, labels: Tensor) -> None:
    """Count a batch in the metrics of :func:`classification_metrics`.

    Once they share the counts of the first one, updating that is enough. A ``MetricCollection`` would set the others'
    attributes anew for every batch, which for a small network takes about a tenth of the evaluation.
    """
    first = metrics.get_submodule("loss")
    assert isinstance(first, _Tally)
    everything = metrics.values(copy_state=False)
    if all(metric.update_called and getattr(metric, "table", None) is first.table for metric in everything):
        first.update(logits, labels)
    else:
        metrics.update(logits, labels)


def classification_metrics(num_classes: int, top_k: int | None) -> MetricCollection:
    """Return loss, accuracy, macro precision, recall and F1, and the top-k accuracy if ``top_k`` is set."""
    metrics: dict[str, Metric | MetricCollection] = {
        "loss": MeanCrossEntropy(num_classes, validate_args=False),
        "accuracy": Accuracy(num_classes, validate_args=False),
        "macro_precision": MacroPrecision(num_classes, validate_args=False),
        "macro_recall": MacroRecall(num_classes, validate_args=False),
        "macro_f1": MacroF1(num_classes, validate_args=False),
    }
    # A group shares the state of its first metric. By default, torchmetrics groups all metrics that agree on one batch.
    groups = [list(metrics)]
    if top_k is not None:
        if not 1 < top_k < num_classes:
            raise MisconfigurationError(
                f"top_k={top_k}, but there are {num_classes} classes: set top_k from 2 to {num_classes - 1}"
            )
        name = f"top{top_k}_accuracy"
        metrics[name] = MulticlassAccuracy(num_classes, top_k=top_k, average="micro", validate_args=False)
        groups.append([name])
    return MetricCollection(metrics, compute_groups=groups)
