"""A callback that kills its own process, as the operating system would: no clean-up, no last words."""

import os
import signal

from fl_lightning.callbacks import RoundCallback


class Kill(RoundCallback):
    """Moments: client (within the round), validated (logged but not saved), saved (after the checkpoint)."""

    def __init__(self, round: int, moment: str, signal_name: str = "SIGKILL") -> None:
        self.round = round
        self.moment = moment
        self.signal = signal.Signals[signal_name]
        self.clients = 0

    def _now(self, trainer, moment: str, round: int) -> None:
        if trainer.global_rank == 0 and moment == self.moment and round == self.round and not trainer.sanity_checking:
            os.kill(os.getpid(), self.signal)

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.clients += 1
        if self.clients % 2 == 0:
            self._now(trainer, "client", trainer.current_epoch)

    def on_validation_end(self, trainer, pl_module):
        self._now(trainer, "validated", trainer.current_epoch)

    def on_train_epoch_start(self, trainer, pl_module):
        self._now(trainer, "saved", trainer.current_epoch - 1)
