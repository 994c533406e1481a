"""Norms of updates, every round."""

import re

from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.callbacks.diagnostics import Charts, Diagnostics, module_of
from fl_lightning.metrics import UpdateNorms
from fl_lightning.metrics.norms import KINDS, layer_groups
from fl_lightning.module import FederatedModule
from fl_lightning.state import StateDict, StateLayout
from fl_lightning.update import ClientUpdate


class NormDiagnostics(Diagnostics):
    """Logs ``norms/<layer>/N``, ``E``, ``N_over_E``, ``move`` and ``integral`` (see :mod:`fl_lightning.metrics`).

    N much below E means that the clients' updates cancel each other out: the cause of slow training on non-IID data, as
    FedNNNN found. ``move`` is how far the model went from which the next round starts. On a plain module, which has no
    clients, ``move`` and ``integral`` of every epoch.
    """

    metric: UpdateNorms | None

    def make_metric(self, trainer: Trainer, module: LightningModule) -> UpdateNorms:
        return UpdateNorms(module)

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        module = module_of(pl_module)
        names = list(layer_groups(module, StateLayout(module)))
        wholes = [name for name in reversed(names) if name in (*KINDS, "all")]
        layers = [name for name in names if name not in wholes]
        any_whole, any_layer = ("|".join(map(re.escape, group)) for group in (wholes, layers))
        charts: Charts = {}
        if isinstance(pl_module, FederatedModule):
            for name in [*wholes, *layers]:
                charts[f"N and E: {name}"] = [rf"^norms/{re.escape(name)}/{quantity}$" for quantity in "NE"]
            charts["N / E"] = [rf"^norms/({any_whole})/N_over_E$"]
            charts["N / E by layer"] = [rf"^norms/({any_layer})/N_over_E$"]
        for quantity, title in (("move", "how far the model moved"), ("integral", "how far it moved so far")):
            charts[title] = [rf"^norms/({any_whole})/{quantity}$"]
            charts[f"{title}, by layer"] = [rf"^norms/({any_layer})/{quantity}$"]
        return {"Norms": charts}

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done."""
        assert self.metric is not None
        self.metric.update(self._round.start_of(update.client), update.state, weight)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved."""
        assert self.metric is not None
        self.metric.moved(self._round.start, pl_module.server.next_start(pl_module))
        self.write(trainer, self.metric.compute())
        self.metric.next_round()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before each epoch."""
        if not isinstance(pl_module, FederatedModule):
            self._start = _copy(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each epoch."""
        if isinstance(pl_module, FederatedModule):
            return
        assert self.metric is not None
        end = _copy(pl_module)
        self.metric.update(self._start, end)
        self.metric.moved(self._start, end)
        values = self.metric.compute()
        self.write(trainer, {tag: values[tag] for tag in values if tag.endswith(("/move", "/integral"))})
        self.metric.next_round()


def _copy(module: LightningModule) -> StateDict:
    return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}
