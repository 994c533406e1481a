"""Keeping Lightning from announcing every client's Trainer."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_announcements() -> Iterator[None]:
    """Hide messages about devices and the end of training, which the server's Trainer has already printed."""
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    logger.addFilter(_is_warning)  # a filter, because changing the level clears the caches of all loggers
    try:
        yield
    finally:
        logger.removeFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
