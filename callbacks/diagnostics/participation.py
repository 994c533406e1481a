"""Logging how often each client took part, in every round."""

from typing import Any

from torch import Tensor

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.callbacks.diagnostics.base import Charts, Diagnostics
from fl_lightning.callbacks.diagnostics.client_curves import MAX_CURVES, check_max_curves, client_curves
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.metrics import ParticipationCounts


class Participation(Diagnostics):
    """Logs ``participation/...``: how many rounds each client has taken part in.

    Args:
        max_curves: with more clients than this, log only ``least``, ``most`` and ``clients``, and no curve per client.
    """

    prefix = "participation"
    metric: ParticipationCounts | None

    def __init__(self, max_curves: int = MAX_CURVES) -> None:
        self.max_curves = check_max_curves(max_curves)

    def make_metric(self, trainer: Trainer, module: LightningModule) -> ParticipationCounts:
        return ParticipationCounts(trainer.datamodule.num_clients)  # type: ignore[attr-defined]

    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        assert self.metric is not None
        self.metric.update(update.client)

    def tags(self, values: Any) -> dict[str, Tensor]:
        counts = values.pop("counts")
        each = len(counts) <= self.max_curves
        curves = client_curves("participation/", dict(enumerate(counts)), each=True) if each else {}
        return curves | super().tags(values)

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        return {"Participation": {"rounds per client": [r"^participation/(client_|least|most)"]}}
