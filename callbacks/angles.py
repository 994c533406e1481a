"""Angles of updates, every round."""

from pytorch_lightning import LightningModule, Trainer

from fl_lightning.aggregation import FedAdp
from fl_lightning.aggregation.base import Aggregate
from fl_lightning.callbacks.diagnostics import Charts, Diagnostics, refuse_plain
from fl_lightning.metrics import UpdateAngles
from fl_lightning.metrics.tags import MAX_CURVES, check_max_curves
from fl_lightning.module import FederatedModule
from fl_lightning.update import ClientUpdate


class AngleDiagnostics(Diagnostics):
    """Logs ``angles/...``, ``angles_smoothed/...``, ``angle_weights/...`` (see :mod:`fl_lightning.metrics`).

    A large angle is a client that pulls elsewhere than the average, such as one with a single class (FedAdp, figure 2).
    Keeps the updates of a round in memory until all clients are done, in float32.

    Args:
        alpha: of FedAdp, for the weights that it would give; by default that of the aggregator, 5 if it is another.
        max_curves: with more clients than that, quantiles and the three worst instead of a curve each.
    """

    metric: UpdateAngles | None

    def __init__(self, alpha: float | None = None, max_curves: int = MAX_CURVES) -> None:
        self.alpha = alpha
        self.max_curves = check_max_curves(max_curves)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the model is set up."""
        refuse_plain(self, pl_module)

    def make_metric(self, trainer: Trainer, module: LightningModule) -> UpdateAngles:
        assert isinstance(trainer.lightning_module, FederatedModule)
        aggregator = trainer.lightning_module.server.aggregator
        alpha = self.alpha
        if alpha is None:
            alpha = aggregator.alpha if isinstance(aggregator, FedAdp) else 5.0
        return UpdateAngles(module, trainer.datamodule.num_clients, alpha, self.max_curves)  # type: ignore[attr-defined]

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        return {
            "Angles": {
                "angle to the average, radians": [r"^angles/"],
                "the same, mean so far": [r"^angles_smoothed/"],
                "weight that FedAdp would give": [r"^angle_weights/"],
            }
        }

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done."""
        assert self.metric is not None
        self.metric.update(update.client, self._round.start_of(update.client), update.state, weight)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved."""
        assert self.metric is not None
        self.write(trainer, self.metric.compute())
        self.metric.next_round()
