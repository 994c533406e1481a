"""Logging the angles of the updates in every round."""

from typing import Any

from torch import Tensor

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.aggregation import FedAdp
from fl_lightning.callbacks.diagnostics.base import Charts, Diagnostics
from fl_lightning.callbacks.diagnostics.client_curves import MAX_CURVES, check_max_curves, client_curves
from fl_lightning.core.limits import check_number
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.metrics import UpdateAngles
from fl_lightning.module import FederatedModule


class AngleDiagnostics(Diagnostics):
    """Logs ``angles/...``, ``angles_smoothed/...`` and ``angle_weights/...``, one curve per client.

    A large angle means that a client disagrees with the average, for example because it has a single class (FedAdp,
    figure 2). The updates of a round stay in memory, in float32, until all clients are done.

    Args:
        alpha: FedAdp's α, for ``angle_weights``; by default the aggregator's, or 5 if the aggregator is not FedAdp.
        max_curves: with more clients than this, log quantiles and the three worst instead of one curve per client.
    """

    prefix = "angles"
    metric: UpdateAngles | None

    def __init__(self, alpha: float | None = None, max_curves: int = MAX_CURVES) -> None:
        if alpha is not None:
            check_number("alpha", alpha, at_least=0, setting="alpha of AngleDiagnostics")
        self.alpha = alpha
        self.max_curves = check_max_curves(max_curves)

    def make_metric(self, trainer: Trainer, module: LightningModule) -> UpdateAngles:
        assert isinstance(trainer.lightning_module, FederatedModule)
        aggregator = trainer.lightning_module.server.aggregator
        alpha = self.alpha
        if alpha is None:
            alpha = aggregator.alpha if isinstance(aggregator, FedAdp) else 5.0
        return UpdateAngles(module, trainer.datamodule.num_clients, alpha)  # type: ignore[attr-defined]

    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        assert self.metric is not None
        difference = round.difference(update, self.metric.layout.parameters)
        self.metric.update(update.client, round.start_of(update.client), update.state, weight, difference)

    def tags(self, values: Any) -> dict[str, Tensor]:
        assert self.metric is not None
        each = self.metric.num_clients <= self.max_curves
        return (
            client_curves("angles/", values["angle"], each)
            | client_curves("angles_smoothed/", values["smoothed"], each)
            | client_curves("angle_weights/", values["weight"], each, worst="smallest")
        )

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        return {
            "Angles": {
                "angle to the average, radians": [r"^angles/"],
                "mean angle so far, radians": [r"^angles_smoothed/"],
                "weight that FedAdp would give": [r"^angle_weights/"],
            }
        }
