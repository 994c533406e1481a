"""The interface of transforms, which change updates on their way to the server."""

from abc import ABC, abstractmethod

from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout
from fl_lightning.core.update import ClientUpdate


class UploadTransform(ABC):
    """Base class of all transforms. They work with every aggregator, because the result is an update like any other."""

    @abstractmethod
    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        """Return the update as the server receives it, with its size on the wire in ``num_bytes``."""
