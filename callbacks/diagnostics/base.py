"""The base class of callbacks that measure the updates of a round."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.module import FederatedModule

#: title of a chart -> regular expressions of the tags in it
Charts = dict[str, list[str]]


class Diagnostics(RoundCallback, ABC):
    """Measures every round with a torchmetrics ``Metric`` and logs its values under a prefix.

    A subclass creates its metric in :meth:`make_metric` and updates it for each client in :meth:`watch`. The base class
    computes the metric after the round, logs it and starts the next round. The metric's persistent states, which carry
    over from round to round, are part of the checkpoint.
    """

    #: prefix of every tag, without the slash that follows it
    prefix: str
    metric: Metric | None = None
    _restored: dict[str, Tensor] | None = None

    @abstractmethod
    def make_metric(self, trainer: Trainer, module: LightningModule) -> Metric:
        """Return a new metric. Called before the first round, with the user's module on its device."""

    @abstractmethod
    def watch(self, round: Round, update: ClientUpdate, weight: float) -> None:
        """Update ``self.metric`` with a client that is done; ``weight`` is its weight before normalisation."""

    def tags(self, values: Any) -> dict[str, Tensor]:
        """Return the computed values by tag; by default, the tag is ``prefix/name`` for each name."""
        if not isinstance(values, dict):
            return {self.prefix: values}
        return {f"{self.prefix}/{name}": value for name, value in values.items()}

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        """Return TensorBoard's charts of the logged values, by category."""
        return {}

    @property
    def watches_plain_modules(self) -> bool:
        """Whether the callback can also measure a module that is not federated."""
        return False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reject a module without clients, unless the callback can measure one."""
        if not isinstance(pl_module, FederatedModule) and not self.watches_plain_modules:
            raise MisconfigurationError(
                f"{type(self).__name__} compares clients, but {type(pl_module).__name__} has none: wrap it,"
                f" FederatedModule({type(pl_module).__name__}(...)), or leave the callback out"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the metric, now that the model is on its device, and restore its persistent states."""
        if self._restored is None and self.metric is not None and trainer.current_epoch > 0:
            self._restored = self.metric.state_dict()  # a second fit with the same Trainer continues the first
        self.metric = self.make_metric(trainer, user_module(pl_module))
        self.metric.load_state_dict(self._restored or {}, strict=False)
        self.metric.to(pl_module.device)
        self._restored = None

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Update the metric with the client."""
        self.watch(round, update, weight)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Log the round and start the next one."""
        assert self.metric is not None
        log_round(trainer, self.tags(self.metric.compute()))
        getattr(self.metric, "next_round", self.metric.reset)()

    def state_dict(self) -> dict[str, Any]:
        """Return the metric's persistent states."""
        return dict(self.metric.state_dict()) if self.metric is not None else dict(self._restored or {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._restored = require_type(state_dict, dict[str, Tensor | list[Tensor]], "the state")


def user_module(pl_module: LightningModule) -> LightningModule:
    """Return the user's module, which a FederatedModule wraps."""
    module = pl_module.module if isinstance(pl_module, FederatedModule) else pl_module
    assert isinstance(module, LightningModule)
    return module
