"""Who took part, every round."""

from pytorch_lightning import LightningModule, Trainer

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.callbacks.diagnostics import Charts, Diagnostics, refuse_plain
from fl_lightning.metrics import ParticipationCounts
from fl_lightning.metrics.tags import MAX_CURVES, check_max_curves
from fl_lightning.module import FederatedModule
from fl_lightning.update import ClientUpdate


class Participation(Diagnostics):
    """Logs in how many rounds the clients took part so far: ``participation/...`` (see :mod:`fl_lightning.metrics`).

    Args:
        max_curves: with more clients than that, only the smallest and the largest count and not a curve each.
    """

    metric: ParticipationCounts | None

    def __init__(self, max_curves: int = MAX_CURVES) -> None:
        self.max_curves = check_max_curves(max_curves)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the model is set up."""
        refuse_plain(self, pl_module)

    def make_metric(self, trainer: Trainer, module: LightningModule) -> ParticipationCounts:
        return ParticipationCounts(trainer.datamodule.num_clients, self.max_curves)  # type: ignore[attr-defined]

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        return {"Participation": {"rounds of a client": [r"^participation/(client_|least|most)"]}}

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done."""
        assert self.metric is not None
        self.metric.update(update.client)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved."""
        assert self.metric is not None
        self.write(trainer, self.metric.compute())
        self.metric.next_round()
