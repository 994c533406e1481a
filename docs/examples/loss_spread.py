"""Measures how much the clients' training losses differ."""

from torchmetrics import MaxMetric, MeanMetric, MetricCollection, MinMetric

from fl_lightning.callbacks import Diagnostics


class LossSpread(Diagnostics):
    """Logs ``losses/mean``, ``losses/smallest`` and ``losses/largest`` over the clients of every round."""

    prefix = "losses"

    def make_metric(self, trainer, module):
        return MetricCollection({"mean": MeanMetric(), "smallest": MinMetric(), "largest": MaxMetric()})

    def watch(self, round, update, weight):
        self.metric.update(update.metrics["loss"])
