"""The server's progress, as lines of text."""

from collections.abc import Sequence
from time import monotonic

from fl_lightning._lightning.names import LightningModule, Trainer, rank_zero_info
from fl_lightning._lightning.server_trainer import evaluated_metrics
from fl_lightning.callbacks.round_callback import RoundCallback
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.module import FederatedModule


class RoundLines(RoundCallback):
    """Prints ``Round 3/100: 9 of 10 clients, 4.2 s, val/accuracy 0.9130, val/loss 0.3121`` after each round.

    If :class:`~fl_lightning.callbacks.ClientEvaluation` evaluated the clients' models, their means follow.
    A federation has this instead of a progress bar, because Flower passes on only complete lines.
    """

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Start the clock."""
        self._started = monotonic()
        self._asked, self._answered = len(clients), 0
        self._metrics: dict[str, float] = {}
        self._before = dict(trainer.callback_metrics)

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Count the client."""
        self._answered += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the metrics of the round."""
        self._metrics = {name: float(trainer.callback_metrics[name]) for name in evaluated_metrics(trainer)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the line."""
        limit = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        last = "" if limit is None else f"/{limit}"
        metrics = {**self._metrics, **self._client_means(trainer)}
        described = "".join(f", {name} {metrics[name]:.4f}" for name in sorted(metrics))
        rank_zero_info(
            f"Round {trainer.current_epoch + 1}{last}: {self._answered} of {self._asked} clients,"
            f" {monotonic() - self._started:.1f} s{described}"
        )

    def _client_means(self, trainer: Trainer) -> dict[str, float]:
        """Return the means over the clients that were logged in this round."""
        return {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("clients/") and name.endswith("_mean") and value is not self._before.get(name)
        }
