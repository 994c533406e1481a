"""What the callbacks share that measure the updates of a round."""

from abc import ABC, abstractmethod
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.module import FederatedModule

#: title of a chart -> regular expressions of the tags in it
Charts = dict[str, list[str]]


class Diagnostics(RoundCallback, ABC):
    """Measures every round with a torchmetrics ``Metric`` and logs its values under a prefix.

    A subclass makes its metric in :meth:`make_metric` and shows it each client in :meth:`watch`. The base computes the
    metric after the round, logs it and starts the next round. What the metric remembers from round to round, its
    persistent states, is part of the checkpoint.
    """

    #: what every tag begins with, followed by a slash
    prefix: str
    metric: Metric | None = None
    _restored: dict[str, Tensor] | None = None

    @abstractmethod
    def make_metric(self, trainer: Trainer, module: LightningModule) -> Metric:
        """Called before the first round, with the user's module on its device."""

    @abstractmethod
    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done, with its weight before normalisation. Updates ``self.metric``."""

    def tags(self, values: Any) -> dict[str, Tensor]:
        """Turn what the metric computed into tagged values; by default ``prefix/name`` for each name."""
        if not isinstance(values, dict):
            return {self.prefix: values}
        return {f"{self.prefix}/{name}": value for name, value in values.items()}

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        """Return how TensorBoard shows what is logged: charts by category."""
        return {}

    @property
    def watches_plain_modules(self) -> bool:
        """Whether there is something to measure in a module that is not federated."""
        return False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a module that has no clients to watch."""
        if not isinstance(pl_module, FederatedModule) and not self.watches_plain_modules:
            raise MisconfigurationError(
                f"{type(self).__name__} compares clients, but {type(pl_module).__name__} has none: wrap it,"
                f" FederatedModule({type(pl_module).__name__}(...)), or leave the callback out"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the metric, now that the model is on its device, and restore what it remembered."""
        if self._restored is None and self.metric is not None and trainer.current_epoch > 0:
            self._restored = self.metric.state_dict()  # a further fit of the same Trainer continues
        self.metric = self.make_metric(trainer, user_module(pl_module))
        self.metric.load_state_dict(self._restored or {}, strict=False)
        self.metric.to(pl_module.device)
        self._restored = None

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Show the client to the metric."""
        self.watch(round, update, weight)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Log the round and start the next one."""
        assert self.metric is not None
        log_round(trainer, self.tags(self.metric.compute()))
        getattr(self.metric, "next_round", self.metric.reset)()

    def state_dict(self) -> dict[str, Any]:
        """Return what the metric remembers."""
        return dict(self.metric.state_dict()) if self.metric is not None else dict(self._restored or {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._restored = state_dict


def user_module(pl_module: LightningModule) -> LightningModule:
    """Return the user's module, which a FederatedModule wraps."""
    module = pl_module.module if isinstance(pl_module, FederatedModule) else pl_module
    assert isinstance(module, LightningModule)
    return module
