"""The callbacks that every federated run has unless it says otherwise."""

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Checkpoint, ModelCheckpoint, RichProgressBar, TQDMProgressBar

from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.progress import RoundProgressBar


def add_round_callbacks(trainer: Trainer) -> None:
    """Puts Lightning's default progress bar and checkpoint into terms of rounds; what the user chose stays.

    Checkpoints are written at the end of a round, never at the end of its validation: from there a run that stopped
    early could not be resumed.
    """
    callbacks: list[Callback] = []
    for callback in trainer.callbacks:
        if type(callback) in (TQDMProgressBar, RichProgressBar):
            callback = RoundProgressBar()
        elif type(callback) is ModelCheckpoint and _is_default(callback):
            continue
        elif isinstance(callback, ModelCheckpoint) and callback._save_on_train_epoch_end is None:
            callback._save_on_train_epoch_end = True
        callbacks.append(callback)
    wants_checkpoints = any(isinstance(callback, Checkpoint) for callback in trainer.callbacks)
    if wants_checkpoints and not any(isinstance(callback, LastRound) for callback in callbacks):
        callbacks.append(LastRound())
    trainer.callbacks = callbacks


def _is_default(checkpoint: ModelCheckpoint) -> bool:
    return checkpoint.monitor is None and checkpoint.filename is None and checkpoint.dirpath is None
