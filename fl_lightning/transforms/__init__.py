"""Transforms of updates on their way from a client to the server."""

from fl_lightning.transforms.base import UploadTransform
from fl_lightning.transforms.mask import BernoulliMask
from fl_lightning.transforms.quantise import QSGD
from fl_lightning.transforms.top_k import TopK

__all__ = ["QSGD", "BernoulliMask", "TopK", "UploadTransform"]
