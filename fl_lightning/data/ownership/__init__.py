"""How many samples of each class each client owns, as numbers, as a table and as a picture."""

from fl_lightning.data.ownership.counts import Ownership

__all__ = ["Ownership"]
