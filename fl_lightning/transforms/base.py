"""The interface of transforms, which change updates on their way to the server."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout
from fl_lightning.core.update import ClientUpdate


class UploadTransform(ABC):
    """Base class of all transforms. They work with every aggregator, because the result is an update like any other."""

    #: whether the transform makes updates smaller on the wire
    compresses = False

    @abstractmethod
    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        """Return the update as the server receives it, with its size on the wire in ``num_bytes``."""

    def apply(self, updates: Iterable[ClientUpdate], round: Round, layout: StateLayout) -> Iterator[ClientUpdate]:
        """Yield the round's updates as the server receives them, each as soon as its client is done.

        Override this in a transform that needs several updates at once. In a distributed run, each rank has the updates
        of its own clients, and a rank without clients calls this too.
        """
        for update in updates:
            yield self(update, round, layout)


def compressed_bytes(update: ClientUpdate, layout: StateLayout, size: int) -> int:
    """Return the size of an update on the wire if its parameters take ``size`` bytes, unless they took fewer before."""
    sent = [update.state[name].nbytes for name in layout.parameters if name not in update.unsent]
    return (update.num_bytes or 0) - sum(sent) + min(size, sum(sent))
