"""A progress bar that counts rounds and clients."""

import sys
from collections.abc import Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.callbacks.progress.tqdm_progress import Tqdm

from fl_lightning.callbacks.round_callback import RoundCallback
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.module import FederatedModule


class RoundProgressBar(TQDMProgressBar, RoundCallback):
    """Shows ``Round 3/100 |████      | 4/10 clients, train/loss=0.31``.

    In a distributed run it counts rank zero's share of the clients.
    """

    def init_train_tqdm(self) -> Tqdm:
        """Create a bar that fits into 80 columns with two metrics."""
        self._rounds = Tqdm(
            desc="Round 1",
            position=2 * self.process_position,
            disable=self.is_disabled,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format="{desc} |{bar:10}| {n_fmt}/{total_fmt} clients{postfix}",
        )
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
        self.train_progress_bar.reset()
        last = f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
        self.train_progress_bar.set_description(f"Round {trainer.current_epoch + 1}{last}")

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Show how many clients will train."""
        self.train_progress_bar.total = len(clients)
        self.train_progress_bar.refresh()

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Count the client."""
        self.train_progress_bar.update(1)

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
