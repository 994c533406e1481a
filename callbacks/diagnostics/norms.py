"""Logging the norms of the updates in every round."""

import re

from torch import Tensor

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.diagnostics.base import Charts, Diagnostics, user_module
from fl_lightning.callbacks.round_callback import log_round
from fl_lightning.core.layers import LAYER_KINDS
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, StateLayout
from fl_lightning.core.update import ClientUpdate
from fl_lightning.metrics import UpdateNorms
from fl_lightning.metrics.norms import layer_groups
from fl_lightning.module import FederatedModule


class NormDiagnostics(Diagnostics):
    """Logs ``norms/<layer>/N``, ``E``, ``N_over_E``, ``move`` and ``integral``.

    N much smaller than E means that the clients' updates cancel each other out, which FedNNNN found to be the cause of
    slow training on non-IID data. ``move`` is the distance between the states that this round and the next start from.
    For a plain module, which has no clients, ``move`` and ``integral`` are logged every epoch.
    """

    prefix = "norms"
    metric: UpdateNorms | None
    watches_plain_modules = True

    def make_metric(self, trainer: Trainer, module: LightningModule) -> UpdateNorms:
        return UpdateNorms(module)

    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        assert self.metric is not None
        difference = round.difference(update, self.metric.layout.parameters)
        self.metric.update(round.start_of(update.client), update.state, weight, difference)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Measure how far the model moved, and log the round."""
        assert self.metric is not None
        self.metric.moved(round.start, pl_module.server.next_start(pl_module))
        super().on_round_end(trainer, pl_module, round, aggregate)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the state in which a plain module starts its epoch."""
        if not isinstance(pl_module, FederatedModule):
            self._start = _copy(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log how far a plain module moved in its epoch."""
        if isinstance(pl_module, FederatedModule):
            return
        assert self.metric is not None
        end = _copy(pl_module)
        self.metric.update(self._start, end)
        self.metric.moved(self._start, end)
        values = self.tags(self.metric.compute())
        log_round(trainer, {tag: values[tag] for tag in values if tag.endswith(("/move", "/integral"))})
        self.metric.next_round()

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        module = user_module(pl_module)
        names = list(layer_groups(module, StateLayout(module)))
        combined = [name for name in reversed(names) if name in (*LAYER_KINDS, "all")]
        layers = [name for name in names if name not in combined]
        any_combined, any_layer = ("|".join(map(re.escape, group)) for group in (combined, layers))
        charts: Charts = {}
        if isinstance(pl_module, FederatedModule):
            for name in [*combined, *layers]:
                # The paper's figures show E and the N of eq. 24, how far the model moved. We add the N of eq. 4.
                charts[f"N and E: {name}"] = [rf"^norms/{re.escape(name)}/{value}$" for value in ("move", "E", "N")]
            charts["N / E"] = [rf"^norms/({any_combined})/N_over_E$"]
            charts["N / E by layer"] = [rf"^norms/({any_layer})/N_over_E$"]
        for quantity, title in (("move", "how far the model moved"), ("integral", "sum of the moves so far")):
            charts[title] = [rf"^norms/({any_combined})/{quantity}$"]
            charts[f"{title}, by layer"] = [rf"^norms/({any_layer})/{quantity}$"]
        return {"Norms": charts}


def _copy(module: LightningModule) -> StateDict:
    return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}
