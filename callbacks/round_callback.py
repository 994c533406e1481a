"""The hooks of a round, beside Lightning's own."""

from collections.abc import Mapping, Sequence

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from fl_lightning.aggregation import Aggregate
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate
from fl_lightning.module import FederatedModule


class RoundCallback(Callback):
    """A callback of the server's Trainer that sees what happens within a round.

    In a distributed run every rank calls the hooks, ``on_client_end`` for its own clients only.
    """

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Called before this rank's ``clients`` train; the module holds the state that they start from."""

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Called when a client is done, with its weight before normalisation."""

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Called when the global model has moved, before validation."""


def log_round(trainer: Trainer, values: Mapping[str, float | Tensor]) -> None:
    """Write values to the loggers at the current round, and make them known to monitors.

    They are written at once: what is logged at the end of an epoch is written after the checkpoint, and a kill in
    between would lose it. Monitors get them directly, because the module's ``log`` takes longer than most diagnostics.
    """
    numbers = {name: float(value) for name, value in values.items()}
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=trainer.current_epoch)
    trainer.callback_metrics.update({name: torch.tensor(number) for name, number in numbers.items()})
