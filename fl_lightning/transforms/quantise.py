"""Quantised uploads: every entry is rounded to one of a few levels, at random and without bias.

Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding.
NeurIPS 2017 (section 3.1, and the buckets of section 4).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateLayout
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms.base import UploadTransform, compressed_bytes

#: size of a bucket's norm on the wire
_NORM_BYTES = 4


class QSGD(UploadTransform):
    """Uploads ‖v‖ · sgn(v_i) · l_i / s for every bucket v of Δ_k, with a random level l_i whose mean is s |v_i| / ‖v‖.

    The expected upload is Δ_k. Statistics and counters are uploaded unquantised. An entry takes as many bits as
    its 2 s + 1 possible values need, and a bucket takes 4 more bytes for its norm.

    Args:
        levels: s, the number of levels above zero.
        bucket: how many entries share a norm; smaller buckets give less noise, but more norms to upload.
    """

    compresses = True

    def __init__(self, levels: int = 7, bucket: int = 512) -> None:
        check_number("levels", levels, at_least=1, below=2**15, setting="levels of QSGD")
        check_number("bucket", bucket, at_least=1, setting="bucket of QSGD")
        self.levels = levels
        self.bucket = bucket

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        trained, start = layout.flatten(update.state), layout.flatten(round.start_of(update.client))
        # drawn on the CPU, because a GPU's generator would draw different numbers
        generator = torch.Generator().manual_seed(seed_for("levels", round.seed, round.number, update.client))
        sent = self.quantise(trained.parameters - start.parameters, generator)
        flat = FlatState(start.parameters + sent, trained.statistics, trained.counters)
        bits = math.ceil(math.log2(2 * self.levels + 1))
        size = math.ceil(len(sent) * bits / 8) + _NORM_BYTES * math.ceil(len(sent) / self.bucket)
        return replace(
            update,
            state=layout.unflatten(flat, like=update.state),
            num_bytes=compressed_bytes(update, layout, size),
        )

    def quantise(self, vector: Tensor, generator: torch.Generator) -> Tensor:
        """Return the vector with its entries rounded to random levels; the expected result is the vector itself."""
        size = len(vector)
        buckets = functional.pad(vector, (0, -size % self.bucket)).view(-1, self.bucket)
        norms = buckets.norm(dim=1, keepdim=True)
        places = self.levels * buckets.abs() / torch.where(norms > 0, norms, 1.0)
        chances = to_device(torch.rand(buckets.shape, generator=generator), vector.device)
        levels = places.floor() + (chances < places.frac())
        return (norms * buckets.sign() * levels / self.levels).flatten()[:size]
