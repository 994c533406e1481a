"""The base class of image data sets: bytes in memory, normalised floats in every batch."""

from abc import abstractmethod
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import TensorDataset
from torchvision.transforms.v2 import functional

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.transfer import to_device
from fl_lightning.data.sources.base import Parts, TensorSource, hold_out

_PADDING = 4


class ImageSource(TensorSource):
    """Base class of image data sets, held as one uint8 tensor (samples, channels, height, width).

    Bytes take a quarter of the memory of floats. Lightning passes every batch to :meth:`on_after_batch_transfer`, so
    modules see normalised floats; the loaders themselves, without a Trainer, yield bytes.

    Args:
        batch_size: samples per training batch.
        train_fraction: fraction of the official training samples to use.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        augment: whether training images are shifted by up to 4 pixels and flipped at random.
        evaluation_batch_size: samples per batch of validation, test and prediction. With 128, convolutional networks
            need less memory and are often faster on a CPU.
    """

    #: Mean and standard deviation of each channel, for pixel values from 0 to 1. They are used for the normalisation.
    channel_mean: tuple[float, ...]
    channel_std: tuple[float, ...]

    def __init__(
        self,
        batch_size: int = 32,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        augment: bool = False,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, evaluation_batch_size)
        self.augment = augment

    @abstractmethod
    def read(self) -> tuple[TensorDataset, TensorDataset]:
        """Return the official training and test parts.

        A class that does not define ``channel_mean`` and ``channel_std`` sets them here.
        """

    def load(self) -> Parts:
        """Read the official parts and hold out the validation part."""
        return hold_out(self, *self.read())

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> Any:
        """Normalise a batch, after augmenting it in training. Lightning calls this when the batch is on the device."""
        images, labels = batch
        trainer = self.trainer
        if self.augment and trainer is not None and trainer.training:
            images = crop_and_flip(images)
        batch = [normalise(images, self.channel_mean, self.channel_std), labels]
        # Lightning converts inputs to the Trainer's precision before this hook, when they are still bytes.
        return batch if trainer is None else trainer.precision_plugin.convert_input(batch)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Convert bytes to floats in [0, 1], subtract each channel's mean and divide by its standard deviation."""
    if not all(std):
        raise MisconfigurationError(
            f"std={std}, but every channel is divided by its std: set data.source.init_args.mean and std, with a std"
            " above 0 for every channel"
        )
    floats = functional.to_dtype(images, torch.float32, scale=True)
    return floats.sub(_channels(tuple(mean), images.device)).div_(_channels(tuple(std), images.device))


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one value per channel, made once per device."""
    with torch.inference_mode(False):  # the first batch may be a validation batch
        return to_device(torch.tensor(values, dtype=torch.float32), device).view(-1, 1, 1)


def crop_and_flip(images: Tensor) -> Tensor:
    """Pad each image of a batch by 4 black pixels, crop it at random to its size and flip it with probability 1/2.

    Random numbers come from torch's global generator on the CPU, so that they do not depend on the device.
    """
    samples, _, height, width = images.shape
    crops = pad(images, [_PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
    top, left = to_device(torch.randint(2 * _PADDING + 1, (2, samples)), images.device)
    cropped = crops[torch.arange(samples, device=images.device), :, top, left]
    flipped = to_device(torch.randint(2, (samples, 1, 1, 1)).bool(), images.device)
    return torch.where(flipped, cropped.flip(3), cropped)
