"""The client's half of an algorithm."""

from typing import TYPE_CHECKING

from fl_lightning._lightning.names import Callback
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.update import ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.client.training import LocalTraining


class ClientCallback(Callback):
    """A callback of a client's Trainer that has access to the federation.

    Every client gets a fresh copy in every round, so attributes do not survive the round. A callback keeps
    what it must remember about its client in :attr:`memory`.

    Attributes:
        client: the client's number.
        round: the round that the client trains in.
        local_training: how clients train.
        memory: tensors by name, as this callback left them after the client's last round; initially empty. Replace
            entries instead of changing them in place.
    """

    client: int
    round: Round
    local_training: "LocalTraining"
    memory: StateDict

    def on_upload(self, update: ClientUpdate) -> None:
        """Called after training, before the update is sent. Tensors in ``update.extras`` are sent too."""

    def personal_model(self) -> StateDict:
        """Return the entries in which the client's own model differs from the global one, for ``ClientEvaluation``."""
        return {}
