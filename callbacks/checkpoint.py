"""Checkpoints at the granularity of rounds."""

from pytorch_lightning.callbacks import ModelCheckpoint


class LastRound(ModelCheckpoint):
    """Keeps ``last.ckpt``, the state after the last whole round: what a killed run is resumed from.

    ``ModelCheckpoint(monitor=..., save_last=True)`` is no substitute: its last is that of the last improvement.
    """

    def __init__(self) -> None:
        super().__init__(
            filename="last", monitor=None, save_top_k=1, save_on_train_epoch_end=True, enable_version_counter=False
        )

    @property
    def state_key(self) -> str:
        """Of its own, so that it never shares state with another ModelCheckpoint."""
        return "LastRound"
