"""Lightning's rich progress bar, counting rounds and clients."""

from collections.abc import Sequence
from time import monotonic
from typing import Any

from fl_lightning._lightning.names import LightningModule, RichProgressBar, Tqdm, Trainer
from fl_lightning.callbacks.round_callback import RoundCallback
from fl_lightning.callbacks.run.progress import format_clients, time_left
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.module import FederatedModule


class RichRoundProgressBar(RichProgressBar, RoundCallback):
    """Shows ``Round 3/100, clients ━━━━ 4/10 0:00:12 • 0:00:18 0.33it/s left: 12:34 train/loss: 0.310``.

    While a client trains for longer than half a second, the bar moves on and shows how far it has come: ``Round 3/100,
    4.37 clients``. With vectorised execution, this is how far the clients that train at once have come. Clients that
    failed or dropped out are named: ``Round 3/100, 2 lost, clients``.

    The value ``left`` is the time until the end of the last round. In a distributed run, the bar counts rank zero's
    share of the clients.
    """

    @classmethod
    def like(cls, bar: RichProgressBar) -> "RichRoundProgressBar":
        """Return a bar with the settings of another one."""
        copy = cls()
        vars(copy).update(vars(bar))
        return copy

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        super().on_train_start(trainer, pl_module)
        self._started, self._first_round = monotonic(), trainer.current_epoch
        self._clients, self._clients_done, self._clients_lost, self._shown = 0, 0, 0, 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the round's number."""
        super().on_train_epoch_start(trainer, pl_module)
        limit = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        last = "" if limit is None else f"/{limit}"
        self._round = f"Round {trainer.current_epoch + 1}{last}"
        self._show(description=f"{self._round}, clients")

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Show how many clients will train."""
        self._clients, self._clients_done, self._clients_lost, self._shown = len(clients), 0, 0, 0.0
        self._show(total=len(clients), completed=0)

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Count the client."""
        self._count_client()

    def on_client_lost(self, trainer: Trainer, pl_module: FederatedModule, round: Round, lost: LostClient) -> None:
        """Count the client as lost."""
        self._clients_lost += 1
        self._count_client()

    def _count_client(self) -> None:
        self._clients_done += 1
        # Clients that trained at once end one after another, when the bar already counts all of them.
        self._shown = max(self._shown, self._clients_done)
        self._show(completed=self._shown, description=f"{self._round}, {self._lost}clients")

    def show_progress(self, clients: float) -> None:
        """Show how many clients' worth of training is done since the last client was counted."""
        self._shown = self._clients_done + clients
        count = "" if clients == 0 else f"{format_clients(self._shown)} "  # Lightning's column shows whole clients
        self._show(completed=self._shown, description=f"{self._round}, {self._lost}{count}clients")

    @property
    def _lost(self) -> str:
        return f"{self._clients_lost} lost, " if self._clients_lost else ""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the round's metrics."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, self._clients - 1)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the time left and the metrics of the bar, without the run's version number."""
        metrics = {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}
        limit = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        if limit is None or trainer.state.fn != "fit" or trainer.sanity_checking:
            return metrics
        done = trainer.current_epoch - self._first_round
        left = time_left(self._started, done, limit - trainer.current_epoch, self._clients_done, self._clients)
        return ({"left": Tqdm.format_interval(left)} if left else {}) | metrics

    def _show(self, **changes: Any) -> None:
        """Change the bar, unless it is disabled."""
        if self.progress is not None and self.train_progress_bar_id is not None:
            self.progress.update(self.train_progress_bar_id, **changes)
            self.refresh()
