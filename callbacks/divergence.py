"""Divergences, every round."""

from pytorch_lightning import LightningModule, Trainer

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.feddna import FedDNA
from fl_lightning.callbacks.diagnostics import Charts, Diagnostics, module_of, refuse_plain
from fl_lightning.metrics import GradientDivergence, StatisticsDivergence
from fl_lightning.metrics.tags import MAX_CURVES, check_max_curves, client_scalars
from fl_lightning.module import FederatedModule
from fl_lightning.update import ClientUpdate


class DivergenceDiagnostics(Diagnostics):
    """Logs ``divergence/...``, and of FedDNA ``feddna/gamma_...`` (see :mod:`fl_lightning.metrics`).

    ``divergence/gradient`` is how far the clients' gradients are apart (FedAdp); it keeps the updates of a round in
    memory until all clients are done, in float32. With a reference, ``divergence/statistics`` and
    ``divergence/parameters`` say how far the served model is from it (FedDNA); of a plain module too, every epoch.

    Args:
        reference: a checkpoint of the same model, trained on all data in one place.
        max_curves: with more clients than that, quantiles and the three smallest γ instead of a curve each.
    """

    metric: GradientDivergence | None
    _distance: StatisticsDivergence | None = None

    def __init__(self, reference: str | None = None, max_curves: int = MAX_CURVES) -> None:
        self.reference = reference
        self.max_curves = check_max_curves(max_curves)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the model is set up."""
        if self.reference is None:
            refuse_plain(self, pl_module)

    def make_metric(self, trainer: Trainer, module: LightningModule) -> GradientDivergence:
        if self.reference is not None:
            # Every rank has the same model: there is nothing to join.
            self._distance = StatisticsDivergence(module, self.reference, sync_on_compute=False)
        return GradientDivergence(module)

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        charts: Charts = {}
        if isinstance(pl_module, FederatedModule):
            charts["between clients' gradients"] = [r"^divergence/gradient$"]
            if isinstance(pl_module.server.aggregator, FedDNA):
                charts["FedDNA's γ"] = [r"^feddna/gamma_(client|quantile|worst)"]
        if self.reference is not None:
            charts["of BatchNorm's statistics from the reference"] = [r"^divergence/statistics$"]
            charts["of the parameters from the reference"] = [r"^divergence/parameters$"]
        return {"Divergences": charts}

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done."""
        assert self.metric is not None
        self.metric.update(self._round.start_of(update.client), update.state, weight, update.learning_rate)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved."""
        assert self.metric is not None
        values = self.metric.compute()
        self.metric.next_round()
        aggregator = pl_module.server.aggregator
        if isinstance(aggregator, FedDNA):
            each = trainer.datamodule.num_clients <= self.max_curves  # type: ignore[attr-defined]
            values |= client_scalars("feddna/gamma_", aggregator.gammas, each, worst="smallest")
        self.write(trainer, values)
        self._log_distance(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each epoch."""
        if not isinstance(pl_module, FederatedModule):
            self._log_distance(trainer, pl_module)

    def _log_distance(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._distance is not None:
            self._distance.update(module_of(pl_module).state_dict())
            self.write(trainer, self._distance.compute())
            self._distance.reset()
