"""The hooks of a round, in addition to Lightning's own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_lightning._lightning.names import Callback, Trainer
from fl_lightning.aggregation import Aggregate
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.module import FederatedModule


class RoundCallback(Callback):
    """A callback of the server's Trainer with hooks for what happens within a round.

    In a distributed run, every rank calls the hooks, but ``on_client_end`` and ``on_client_lost`` only for its own
    clients.
    """

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Called before this rank's ``clients`` train; the module holds the state that they start from."""

    def on_client_end(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, update: ClientUpdate, weight: float
    ) -> None:
        """Called when a client is done, with its weight before normalisation."""

    def on_client_lost(self, trainer: Trainer, pl_module: FederatedModule, round: Round, lost: LostClient) -> None:
        """Called instead of :meth:`on_client_end` for a client that failed or dropped out."""

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Called when the global model has been updated, before validation."""


def log_round(trainer: Trainer, values: Mapping[str, float | Tensor]) -> None:
    """Write values to the loggers at the current round, and make them available to callbacks that monitor metrics.

    The values are written immediately, because Lightning would write them after the checkpoint, and a kill in between
    would lose them. ``callback_metrics`` is set directly, because the module's ``log`` is slower than most diagnostics.
    """
    numbers = _read(values)
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=trainer.current_epoch)
    trainer.callback_metrics.update({name: torch.tensor(number) for name, number in numbers.items()})


def _read(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Return the values as numbers; all that are on a GPU are read at once, because the host waits for every read."""
    remote = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.is_cuda}
    read = torch.stack([value.double().reshape(()) for value in remote.values()]).tolist() if remote else []
    numbers = dict(zip(remote, read, strict=True))
    return {name: numbers[name] if name in numbers else float(value) for name, value in values.items()}
