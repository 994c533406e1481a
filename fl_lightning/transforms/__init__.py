"""Transforms: what happens to an update on its way to the server."""

from fl_lightning.transforms.base import UploadTransform
from fl_lightning.transforms.mask import BernoulliMask

__all__ = ["BernoulliMask", "UploadTransform"]
