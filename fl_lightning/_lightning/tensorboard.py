"""Writing to TensorBoard what its loggers have no method for."""

from collections.abc import Iterable, Iterator
from typing import Any

from fl_lightning._lightning.names import TensorBoardLogger, Trainer


def tensorboard_loggers(trainer: Trainer) -> Iterator[TensorBoardLogger]:
    """Yield the Trainer's TensorBoard loggers."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            yield logger


def write_summaries(logger: TensorBoardLogger, summaries: Iterable[Any]) -> None:
    """Write protocol buffers, such as the HParams plugin's."""
    writer = logger.experiment._get_file_writer()
    for summary in summaries:
        writer.add_summary(summary, 0)
    logger.experiment.flush()


def mark_restart(logger: TensorBoardLogger, step: int) -> None:
    """Tell TensorBoard that the run restarts at ``step``, so that it drops the points of an interrupted round."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer = logger.experiment._get_file_writer()
    writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
