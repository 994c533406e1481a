"""What the callbacks share that watch a federation by metrics."""

from abc import ABC, abstractmethod
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.module import FederatedModule
from fl_lightning.rounds import Round

#: title of a chart -> regular expressions of the tags in it
Charts = dict[str, list[str]]


class Diagnostics(RoundCallback, ABC):
    """Logs a metric every round. What the metric remembers from round to round is in the checkpoint.

    A subclass makes its metric in :meth:`make_metric`, updates it in the hooks of a round and calls :meth:`write`. The
    tags are listed in :mod:`fl_lightning.metrics`.
    """

    metric: Metric | None = None
    _memory: dict[str, Tensor] | None = None
    _round: Round

    @abstractmethod
    def make_metric(self, trainer: Trainer, module: LightningModule) -> Metric | None:
        """Called before the first round, with the user's module on its device."""

    def charts(self, pl_module: LightningModule) -> dict[str, Charts]:
        """How TensorBoard shows what is logged: charts by category."""
        return {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model is on its device and a checkpoint is loaded."""
        if self._memory is None and self.metric is not None and trainer.current_epoch > 0:
            self._memory = self.metric.state_dict()  # a further fit of the same Trainer goes on
        self.metric = self.make_metric(trainer, module_of(pl_module))
        if self.metric is not None:
            self.metric.load_state_dict(self._memory or {}, strict=False)
            self.metric.to(pl_module.device)
        self._memory = None

    def on_round_start(self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Any) -> None:
        """Called before this rank's clients train."""
        self._round = round

    def write(self, trainer: Trainer, values: dict[str, Tensor]) -> None:
        """Writes numbers at the round, or at the epoch of a plain module, and makes them known to monitors."""
        for logger in trainer.loggers:
            logger.log_metrics({name: float(value) for name, value in values.items()}, step=trainer.current_epoch)
        # The module's ``log`` would take longer for these many numbers than the metrics themselves.
        trainer.callback_metrics.update(values)

    def state_dict(self) -> dict[str, Any]:
        """What the metric remembers."""
        return dict(self.metric.state_dict()) if self.metric is not None else dict(self._memory or {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._memory = state_dict


def module_of(pl_module: LightningModule) -> LightningModule:
    """The user's module."""
    module = pl_module.module if isinstance(pl_module, FederatedModule) else pl_module
    assert isinstance(module, LightningModule)
    return module


def refuse_plain(callback: RoundCallback, pl_module: LightningModule) -> None:
    """A callback that compares clients has nothing to do where there are none."""
    if not isinstance(pl_module, FederatedModule):
        raise MisconfigurationException(
            f"{type(callback).__name__} compares clients, but {type(pl_module).__name__} has none: wrap it,"
            f" FederatedModule({type(pl_module).__name__}(...)), or leave the callback out"
        )
