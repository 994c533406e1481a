"""Counting how many samples of each class each client owns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.data.datamodule import ClientDatasets, FederatedDataModule
from fl_lightning.data.partitions.base import Indices
from fl_lightning.data.partitions.grouping import Pieces, sizes_of

#: Samples are not counted by class if the table would have more cells than this.
_MAX_CELLS = 100_000_000


@dataclass
class Ownership:
    """How many samples of each class each client owns.

    Args:
        source: description of the data.
        partition: description of the partition, with the seed.
        clients: numbers of the clients.
        sizes: n_k, the number of samples of each client.
        counts: number of samples by client (rows) and class (columns); None if the labels are not classes, or if the
            table would be too large.
        num_samples: number of training samples.
        num_owned: number of training samples with at least one owner.
        num_shared: number of training samples with more than one owner.
    """

    source: str
    partition: str
    clients: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray | None
    num_samples: int
    num_owned: int
    num_shared: int

    @classmethod
    def of(cls, data: FederatedDataModule) -> "Ownership":
        """Count the samples of all clients or, if clients redraw every round, of the first round's cohort."""
        clients = np.array(data.cohort(0) if data.redraws else range(data.num_clients))
        parts: Sequence[Indices] = data.all_indices()
        if data.redraws:
            parts = [data.indices(client) for client in clients.tolist()]
        sizes = sizes_of(parts)
        samples = parts.samples if isinstance(parts, Pieces) else np.concatenate(parts)
        num_samples = len(data.data.dataset)  # type: ignore[arg-type]
        owners = np.bincount(samples, minlength=num_samples)
        counts = None
        if data.labels is not None:
            labels = data.labels[samples]
            num_classes = int(data.labels.max()) + 1
            if len(clients) * num_classes <= _MAX_CELLS:
                cells = np.repeat(np.arange(len(clients)) * num_classes, sizes) + labels
                counts = np.bincount(cells, minlength=len(clients) * num_classes).reshape(len(clients), num_classes)
        ready_made = isinstance(data.source, ClientDatasets)
        classes = "" if counts is None else f" of {counts.shape[1]} classes"
        return cls(
            source=f"{type(data.source).__name__}, {num_samples:,} samples{classes}",
            partition=("ready-made" if ready_made else repr(data.partition))
            + f", seed {data.seed}"
            + (", redrawn every round (showing round 1)" if data.redraws else ""),
            clients=clients,
            sizes=sizes,
            counts=counts,
            num_samples=num_samples,
            num_owned=int(np.count_nonzero(owners)),
            num_shared=int(np.count_nonzero(owners > 1)),
        )
