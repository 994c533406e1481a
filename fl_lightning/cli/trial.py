"""The trial batch of a run that is started from the command line."""

from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning.module import FederatedModule


class TrialBatch(Callback):
    """Trains on one batch before the first round, so that a config whose parts do not fit is refused in one line.

    Python programs do not need it: they see the traceback of their own code when the first client trains.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try a batch. This runs after the server has prepared the clients."""
        assert isinstance(pl_module, FederatedModule)
        module = pl_module.module
        assert isinstance(module, LightningModule)
        pl_module.server.training.try_batch(module)
