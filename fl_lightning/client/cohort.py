"""The step of a round that can be replaced: training its clients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from fl_lightning._lightning.names import Callback, LightningModule
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate
from fl_lightning.data import FederatedDataModule

#: changes an update on its way to the server
Upload = Callable[[ClientUpdate, Round], ClientUpdate]


def upload_unchanged(update: ClientUpdate, round: Round) -> ClientUpdate:
    """Send an update as it is."""
    return update


class CohortTraining(ABC):
    """Trains the clients of a round: in this process, or on the machines that have their data.

    The server, the aggregators, the diagnostics and the checkpoints do not know which of them trained.
    """

    #: called while clients train, with how many clients' worth of training is done since the last update
    on_progress: Callable[[float], None] | None = None

    @abstractmethod
    def prepare(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        algorithm_callbacks: Sequence[Callback] = (),
        store: ClientStore | None = None,
        max_batches: int | None = None,
        upload: Upload = upload_unchanged,
    ) -> None:
        """Get ready to train, once the global model is on its device and its state is restored.

        Args:
            module: the global model.
            data: the clients' data.
            algorithm_callbacks: the client's half of the server's algorithm.
            store: holds what the callbacks remember about each client.
            max_batches: stop every client after this many batches, for a trial run.
            upload: changes every update on its way to the server.
        """

    @abstractmethod
    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate]:
        """Train the clients, each from the round's start, and yield their updates as the server receives them."""

    @abstractmethod
    def release(self) -> None:
        """Release what :meth:`prepare` got, at the end of a fit."""

    @abstractmethod
    def personal_model(self, client: int) -> StateDict:
        """Return the entries in which a client's own model differs from the global one."""

    @property
    @abstractmethod
    def logged_names(self) -> Collection[str]:
        """The metrics that clients log in training, as far as this process knows."""
