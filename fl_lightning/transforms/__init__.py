"""Transforms of updates on their way from a client to the server."""

from fl_lightning.transforms.base import UploadTransform
from fl_lightning.transforms.mask import BernoulliMask

__all__ = ["BernoulliMask", "UploadTransform"]
