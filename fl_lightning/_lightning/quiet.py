"""Keeping Lightning from announcing every client's Trainer."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_announcements() -> Iterator[None]:
    """Hide what Lightning says about devices and the end of training, which the server's Trainer has said already."""
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
