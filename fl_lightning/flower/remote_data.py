"""What the server knows about data that it never sees."""

from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.labels import Labels
from fl_lightning.data.partitions.grouping import Pieces
from fl_lightning.data.training_data import TrainingData
from fl_lightning.flower.roll import Roll


class RemoteData(FederatedDataModule):
    """A data module that knows how many samples each client has, but holds none of them.

    Selections, the partition's picture and the run's summary work as in a simulation. The source is used for
    validation and testing only, so the server needs no training data, and no data at all if
    ``trainer.limit_val_batches`` is 0.

    Args:
        arguments: the arguments of :class:`~fl_lightning.FederatedDataModule`. The partition is used only for the
            number of clients, unless ``federation.num_clients`` is set.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        #: waits for the clients; set before the run
        self.roll: Roll | None = None
        self.wait = 300.0

    def prepare_data(self) -> None:
        """Prepare the source's data, unless the server has none."""
        if self._needs_source:
            super().prepare_data()

    def setup(self, stage: str) -> None:
        """Load the source's evaluation data, and call the roll before training."""
        self.source.trainer = self.trainer
        if self._needs_source:
            self.source.setup("validate" if stage == "fit" else stage)
        if stage == "fit" and self._data is None:
            assert self.roll is not None
            self.roll.call(self.wait)
            self._adopt_counts(self.roll)

    @property
    def _needs_source(self) -> bool:
        """Whether the server evaluates. A server that leaves that to the nodes needs no data at all."""
        trainer = self.trainer
        return trainer is None or not trainer.training or trainer.limit_val_batches != 0

    @property
    def redraws(self) -> bool:
        """False, because the server does not know which samples clients have, even if they draw new ones."""
        return False

    def client_loader(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error, because the server has no samples of clients."""
        raise MisconfigurationError(
            "the clients' samples stay on their nodes, but a callback of the server asks for them: remove it from"
            " trainer.callbacks, or simulate"
        )

    def _adopt_counts(self, roll: Roll) -> None:
        """Make up indices and labels that agree with what the nodes report."""
        clients = [roll.clients[client] for client in range(roll.num_clients)]
        sizes = np.array([client.num_samples for client in clients])
        counts = [client.class_counts for client in clients]
        labels = None
        if all(count is not None for count in counts):
            values = [np.repeat(np.arange(len(count)), count) for count in counts if count is not None]
            labels = Labels(np.concatenate(values), "the nodes' class counts", repeats=True)
        nothing = TensorDataset(torch.empty(int(sizes.sum()), 0))
        self.adopt(
            TrainingData(nothing, roll.batch_size, default_collate), Pieces(np.arange(sizes.sum()), sizes), labels
        )
