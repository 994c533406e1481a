"""How many bytes a round actually sends."""

from fl_lightning._lightning.names import Trainer
from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.core.round import Round
from fl_lightning.flower.remote_training import RemoteTraining
from fl_lightning.module import FederatedModule


class WireTraffic(RoundCallback):
    """Logs the measured bytes of a round, ``wire/up`` and ``wire/down``, without what the transport adds.

    ``bytes/up`` and ``bytes/down`` are what the algorithm needs to send, as in a simulation.

    Args:
        training: counts the bytes.
    """

    def __init__(self, training: RemoteTraining) -> None:
        self._training = training

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Log the bytes of the round."""
        log_round(trainer, {"wire/up": float(self._training.received), "wire/down": float(self._training.sent)})
