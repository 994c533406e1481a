"""A callback that kills its own process as the operating system would, without any clean-up."""

import os
import signal

from fl_lightning.callbacks import RoundCallback


class Kill(RoundCallback):
    """Kills the process in a given round.

    Args:
        round: the round's number, counted from 0.
        moment: ``client`` (in local training), ``validated`` (logged, not saved) or ``saved`` (after the checkpoint).
        signal_name: the signal to send.
    """

    def __init__(self, round: int, moment: str, signal_name: str = "SIGKILL") -> None:
        self.round = round
        self.moment = moment
        self.signal = signal.Signals[signal_name]
        self.clients = 0

    def _kill_at(self, trainer, moment: str, round: int) -> None:
        if trainer.global_rank == 0 and moment == self.moment and round == self.round and not trainer.sanity_checking:
            os.kill(os.getpid(), self.signal)

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.clients += 1
        if self.clients % 2 == 0:
            self._kill_at(trainer, "client", trainer.current_epoch)

    def on_validation_end(self, trainer, pl_module):
        self._kill_at(trainer, "validated", trainer.current_epoch)

    def on_train_epoch_start(self, trainer, pl_module):
        self._kill_at(trainer, "saved", trainer.current_epoch - 1)
