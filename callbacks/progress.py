"""A progress bar that speaks of rounds and clients."""

import sys
from collections.abc import Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.callbacks.progress.tqdm_progress import Tqdm

from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.module import FederatedModule
from fl_lightning.rounds import Round
from fl_lightning.update import ClientUpdate


class RoundProgressBar(TQDMProgressBar, RoundCallback):
    """``Round 3/100 |████      | 4/10 clients, train/loss=0.31``. In a distributed run it counts rank zero's share."""

    def init_train_tqdm(self) -> Tqdm:
        """Narrow enough for 80 columns with two metrics."""
        return Tqdm(
            desc="Round 1",
            position=2 * self.process_position,
            disable=self.is_disabled,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format="{desc} |{bar:10}| {n_fmt}/{total_fmt} clients{postfix}",
        )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leaves the line, so that what is said of the exception has one of its own."""
        if self._train_progress_bar is not None:
            self._train_progress_bar.close()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Without the run's version number."""
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Called before each round."""
        self.train_progress_bar.reset()
        last = f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
        self.train_progress_bar.set_description(f"Round {trainer.current_epoch + 1}{last}")

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Called before this rank's clients train."""
        self.train_progress_bar.total = len(clients)
        self.train_progress_bar.refresh()

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done."""
        self.train_progress_bar.update(1)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Called when the round is done."""
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))

    def init_validation_tqdm(self) -> Tqdm:
        """Silent between rounds, where it takes a moment; shown by ``trainer.validate``."""
        if self.trainer.state.fn != "validate":
            return Tqdm(disable=True)
        return super().init_validation_tqdm()

    def init_sanity_tqdm(self) -> Tqdm:
        """Silent."""
        return Tqdm(disable=True)
