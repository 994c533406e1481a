"""The hooks of a round, beside Lightning's own."""

from collections.abc import Sequence

from pytorch_lightning import Callback, Trainer

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.module import FederatedModule
from fl_lightning.rounds import Round
from fl_lightning.update import ClientUpdate


class RoundCallback(Callback):
    """A callback of the server's Trainer that sees what happens within a round.

    In a distributed run every rank calls the hooks, ``on_client_end`` for its own clients only.
    """

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Called before this rank's ``clients`` train; the module holds the state that they start from."""

    def on_client_end(self, trainer: Trainer, pl_module: FederatedModule, update: ClientUpdate, weight: float) -> None:
        """Called when a client is done, with its weight before normalisation."""

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved, before validation."""
