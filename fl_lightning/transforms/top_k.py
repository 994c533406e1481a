"""Sparse uploads of the largest entries, with error feedback.

Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018 (algorithm 1 with top-k).
Aji, Heafield. Sparse Communication for Distributed Gradient Descent. EMNLP 2017.
"""

from dataclasses import replace

import torch

from fl_lightning.core.limits import check_number
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateLayout
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms.base import UploadTransform, compressed_bytes

#: size of an entry's position on the wire
_INDEX_BYTES = 4


class TopK(UploadTransform):
    """Uploads the k entries of Δ_k + e_k with the largest absolute values, and keeps the others as the next e_k.

    e_k is what the client has not sent so far. It stays in the client's memory until the client takes part
    again. Statistics and counters are uploaded uncompressed. A sent entry takes its own bytes and 4 for its position.

    Args:
        fraction: k as a fraction of the parameters; at least one entry is sent. 1 sends everything.
    """

    compresses = True

    def __init__(self, fraction: float) -> None:
        check_number("fraction", fraction, above=0, at_most=1, setting="fraction of TopK")
        self.fraction = fraction

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        writer = type(self).__name__
        trained, start = layout.flatten(update.state), layout.flatten(round.start_of(update.client))
        wanted = trained.parameters - start.parameters
        unsent = round.remembered(writer, update.client).get("unsent")
        if unsent is not None and unsent.shape == wanted.shape:  # an algorithm may have changed the widths of layers
            wanted = wanted + unsent
        k = max(int(self.fraction * len(wanted) + 0.5), 1)
        kept = wanted.abs().topk(k, sorted=False).indices
        sent = torch.zeros_like(wanted).index_copy_(0, kept, wanted[kept])
        flat = FlatState(start.parameters + sent, trained.statistics, trained.counters)
        return replace(
            update,
            state=layout.unflatten(flat, like=update.state),
            num_bytes=compressed_bytes(update, layout, k * (wanted.element_size() + _INDEX_BYTES)),
            memory={**update.memory, writer: {"unsent": wanted - sent}},
        )
