"""Logging divergences in every round."""

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.aggregation import Aggregate, FedDNA
from fl_lightning.callbacks.diagnostics.base import Charts, Diagnostics, user_module
from fl_lightning.callbacks.diagnostics.client_curves import MAX_CURVES, check_max_curves, client_curves
from fl_lightning.callbacks.round_callback import log_round
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.metrics import GradientDivergence, StatisticsDivergence
from fl_lightning.module import FederatedModule


class DivergenceDiagnostics(Diagnostics):
    """Logs ``divergence/...``, and ``feddna/gamma_...`` if the aggregator is FedDNA.

    ``divergence/gradient`` is how far apart the clients' gradients are (FedAdp). The updates of a round stay in memory,
    in float32, until all clients are done. With a reference, ``divergence/statistics`` and ``divergence/parameters``
    are how far the served model is from the reference (FedDNA); for a plain module, they are logged every epoch.

    Args:
        reference: a checkpoint of the same model, trained on all data in one place.
        max_curves: with more clients than this, log quantiles and the three smallest γ instead of one curve per client.
    """

    prefix = "divergence"
    metric: GradientDivergence | None
    _distance: StatisticsDivergence | None = None

    def __init__(self, reference: str | None = None, max_curves: int = MAX_CURVES) -> None:
        self.reference = reference
        self.max_curves = check_max_curves(max_curves)

    @property
    def watches_plain_modules(self) -> bool:
        return self.reference is not None

    def make_metric(self, trainer: Trainer, module: LightningModule) -> GradientDivergence:
        if self.reference is not None:
            # Every rank has the same model, so there is nothing to synchronise.
            self._distance = StatisticsDivergence(module, self.reference, sync_on_compute=False)
        return GradientDivergence(module)

    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        assert self.metric is not None
        self.metric.update(round.start_of(update.client), update.state, weight, update.learning_rate)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Log the round, FedDNA's γ and the distance to the reference."""
        super().on_round_end(trainer, pl_module, round, aggregate)
        aggregator = pl_module.server.aggregator
        if isinstance(aggregator, FedDNA):
            each = trainer.datamodule.num_clients <= self.max_curves  # type: ignore[attr-defined]
            log_round(trainer, client_curves("feddna/gamma_", aggregator.gammas, each, worst="smallest"))
        self._log_distance(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log how far a plain module is from the reference."""
        if not isinstance(pl_module, FederatedModule):
            self._log_distance(trainer, pl_module)

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        charts: Charts = {}
        if isinstance(pl_module, FederatedModule):
            charts["between clients' gradients"] = [r"^divergence/gradient$"]
            if isinstance(pl_module.server.aggregator, FedDNA):
                charts["FedDNA's γ"] = [r"^feddna/gamma_(client|quantile|worst)"]
        if self.reference is not None:
            charts["of the statistics from the reference"] = [r"^divergence/statistics$"]
            charts["of the parameters from the reference"] = [r"^divergence/parameters$"]
        return {"Divergences": charts}

    def _log_distance(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._distance is not None:
            self._distance.update(user_module(pl_module).state_dict())
            log_round(trainer, self.tags(self._distance.compute()))
            self._distance.reset()
