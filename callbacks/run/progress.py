"""A progress bar that counts rounds and clients."""

import math
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any

from fl_lightning._lightning.names import LightningModule, Tqdm, TQDMProgressBar, Trainer
from fl_lightning.callbacks.round_callback import RoundCallback
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.module import FederatedModule


def time_left(
    started: float, rounds_done: int, rounds_left: int | None, clients_done: int, clients: int | None
) -> float | None:
    """Estimate the time until the last round is over, in seconds; None if it is unknown.

    Args:
        started: when the first round of this process started.
        rounds_done: the number of rounds that this process completed.
        rounds_left: the number of remaining rounds, including the current one; None if there is no limit.
        clients_done: the number of clients that are done with the current round.
        clients: the number of clients in the current round.
    """
    current = clients_done / clients if clients else 0.0
    done = rounds_done + current
    if rounds_left is None or done == 0:
        return None
    return (monotonic() - started) / done * (rounds_left - current)


def format_clients(done: float) -> str:
    """Format a number of clients: ``4``, or ``4.37`` while the fifth client trains."""
    return str(int(done)) if done == int(done) else f"{math.floor(100 * done) / 100:.2f}"


class _RoundBar(Tqdm):
    """A bar for the clients of a round that also shows the time left until the end of the last round."""

    FORMAT = "{desc} |{bar}| {done}/{total_fmt} clients{lost}{left}{postfix}"

    #: when the first round of this process started
    started = 0.0
    #: the number of rounds that this process completed
    rounds_done = 0
    #: the number of remaining rounds, including the current one; None if there is no limit
    rounds_left: int | None = None
    #: the number of clients that the current round has lost
    clients_lost = 0

    @property
    def time_left(self) -> float | None:
        """The estimated time until the last round is over, in seconds; None if it is unknown."""
        return time_left(self.started, self.rounds_done, self.rounds_left, self.n, self.total)

    @property
    def format_dict(self) -> dict[str, Any]:
        """The values of the bar's format, with ``done``, ``lost`` and ``left``."""
        left = self.time_left
        return {
            **super().format_dict,
            "left": f", {self.format_interval(left)} left" if left else "",
            "done": format_clients(self.n - self.clients_lost),
            "lost": f", {self.clients_lost} lost" if self.clients_lost else "",
        }


class RoundProgressBar(TQDMProgressBar, RoundCallback):
    """Shows ``Round 3/100 |████      | 4/10 clients, 12:34 left, train/loss=0.31``.

    While a client trains for longer than half a second, the bar shows how far it has come: ``4.37/10 clients``. With
    vectorised execution, this is how far the clients that train at once have come. Clients that failed or dropped out
    are not among them: ``8/10 clients, 2 lost``.

    The time left is the time until the end of the last round. In a distributed run, the bar counts rank zero's share of
    the clients.
    """

    def init_train_tqdm(self) -> Tqdm:
        """Create a bar that fits into 80 columns with two metrics."""
        self._first_round = self.trainer.current_epoch
        self._rounds = _RoundBar(
            desc="Round 1",
            position=2 * self.process_position,
            disable=self.is_disabled,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=_RoundBar.FORMAT,
        )
        self._rounds.started = monotonic()
        return self._rounds

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the error message starts on a new line."""
        if hasattr(self, "_rounds"):
            self._rounds.close()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the metrics of the bar, without the run's version number."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Show the round's number."""
        limit = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        self._rounds.rounds_done = trainer.current_epoch - self._first_round
        self._rounds.rounds_left = None if limit is None else limit - trainer.current_epoch
        self.train_progress_bar.reset()
        last = "" if limit is None else f"/{limit}"
        self.train_progress_bar.set_description_str(f"Round {trainer.current_epoch + 1}{last}")

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Show how many clients will train."""
        self._clients_done = self._rounds.clients_lost = 0
        self.train_progress_bar.total = len(clients)
        self.train_progress_bar.refresh()

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Count the client."""
        self._count_client()

    def on_client_lost(self, trainer: Trainer, pl_module: FederatedModule, round: Round, lost: LostClient) -> None:
        """Count the client as lost."""
        self._rounds.clients_lost += 1
        self._count_client()

    def _count_client(self) -> None:
        self._clients_done += 1
        # Clients that trained at once end one after another, when the bar already counts all of them.
        self.train_progress_bar.n = max(self.train_progress_bar.n, self._clients_done)
        self.train_progress_bar.update(0)

    def show_progress(self, clients: float) -> None:
        """Show how many clients' worth of training is done since the last client was counted."""
        self.train_progress_bar.n = self._clients_done + clients
        self.train_progress_bar.refresh()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Show the round's metrics."""
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))

    def init_validation_tqdm(self) -> Tqdm:
        """Create no bar for the short validation between rounds, but the usual one for ``trainer.validate``."""
        if self.trainer.state.fn != "validate":
            return Tqdm(disable=True)
        return super().init_validation_tqdm()

    def init_sanity_tqdm(self) -> Tqdm:
        """Create no bar for the sanity check."""
        return Tqdm(disable=True)
