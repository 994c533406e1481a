"""The step of a round that can be replaced: training its clients."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from fl_lightning._lightning.names import Callback, LightningModule
from fl_lightning.core.round import Round
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.data import FederatedDataModule


class CohortTraining(ABC):
    """Trains the clients of a round: in this process, or on the machines that have their data.

    The server, the aggregators, the diagnostics and the checkpoints do not know where the clients trained.
    """

    #: called while clients train, with how many clients' worth of training is done since the last update
    on_progress: Callable[[float], None] | None = None
    #: whether clients apply the upload transforms themselves, before they send their updates
    applies_transforms = False

    @abstractmethod
    def prepare(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        algorithm_callbacks: Sequence[Callback] = (),
        store: ClientStore | None = None,
        max_batches: int | None = None,
    ) -> None:
        """Get ready to train, once the global model is on its device and its state is restored.

        Args:
            module: the global model.
            data: the clients' data.
            algorithm_callbacks: the client's half of the server's algorithm.
            store: holds what the callbacks remember about each client.
            max_batches: stop every client after this many batches, for a trial run.
        """

    @abstractmethod
    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate | LostClient]:
        """Train the clients, each from the round's start, and yield their updates one by one.

        A client that sends nothing is yielded as a :class:`~fl_lightning.core.update.LostClient`.
        """

    def try_batch(self, module: LightningModule) -> None:
        """Reject a model or an optimiser that does not fit the data, if that can be found out here.

        Call this after :meth:`prepare`.

        Args:
            module: the global model.
        """

    @abstractmethod
    def release(self) -> None:
        """Release what :meth:`prepare` acquired, at the end of a fit."""

    def evaluate(
        self, clients: Sequence[int], module: LightningModule, round: Round, samples: str
    ) -> dict[int, dict[str, float]] | None:
        """Evaluate clients' own models where the clients are; None if the server can do it itself.

        Args:
            clients: the clients to evaluate.
            module: the served model.
            round: the round that has just ended.
            samples: whether to evaluate on the ``validation`` data or on the clients' ``own`` samples.
        """
        return None

    @property
    @abstractmethod
    def logged_names(self) -> Collection[str]:
        """The metrics that clients log in training, as far as this process knows."""
