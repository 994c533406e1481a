"""Hiding Lightning's announcements of every client's Trainer, and messages that are irrelevant to a federation."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_utilities.core import rank_zero

_IRRELEVANT = (
    r"💡 Tip|TPU available|`Trainer.fit` stopped|\nDetected KeyboardInterrupt|(\[rank: \d+\] )?Received SIGTERM"
)


@contextmanager
def without_announcements() -> Iterator[None]:
    """Hide messages about devices and the end of training, which the server's Trainer has already printed."""
    logger = _logger()
    logger.addFilter(_is_warning)  # a filter, because changing the level clears the caches of all loggers
    try:
        yield
    finally:
        logger.removeFilter(_is_warning)


def silence_irrelevant_messages() -> None:
    """Hide messages from Lightning that are irrelevant to a federation, for the rest of the process."""
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", r".*add the following callbacks: \['LastRound'\]")
    _logger().addFilter(_is_relevant)
    for copy in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(f"{copy}.utilities.seed").setLevel(logging.WARNING)
    for copy in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(f"{copy}.trainer.connectors.signal_connector").addFilter(_is_relevant)


def _logger() -> logging.Logger:
    """Return the logger that ``rank_zero_info`` writes to. It belongs to the Lightning that was imported last."""
    return rank_zero.log


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _is_relevant(record: logging.LogRecord) -> bool:
    return not re.match(_IRRELEVANT, record.getMessage())
