"""Images: held as bytes, made into normalised floats batch by batch, on the device."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import TensorDataset
from torchvision.transforms.v2 import functional

from fl_lightning.data.source import Parts, TensorSource, hold_out

_PADDING = 4


class ImageSource(TensorSource):
    """Images as one uint8 tensor (samples, channels, height, width), a quarter of the memory that floats take.

    Lightning hands every batch to :meth:`on_after_batch_transfer`, so a module sees normalised floats. Who iterates
    over the loaders without a Trainer gets the bytes.

    Args:
        batch_size: samples a training batch.
        train_fraction: share of the official training part that is used at all.
        validation_fraction: share of that which is split off, before clients share the rest, and watched from round to
            round. 0 watches the test set.
        augment: whether training images are cropped and flipped at random.
    """

    #: of each channel over the training images, in units of the brightest value
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __init__(
        self,
        batch_size: int = 32,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        augment: bool = False,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction)
        self.augment = augment

    @abstractmethod
    def read(self) -> tuple[TensorDataset, TensorDataset]:
        """The official training and test part; ``mean`` and ``std`` are known afterwards."""

    def load(self) -> Parts:
        """The official parts, and the hold-out."""
        return hold_out(self, *self.read())

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> Any:
        """Called when a batch is on the device: augments it in training, and normalises it."""
        images, labels = batch
        trainer = self.trainer
        if self.augment and trainer is not None and trainer.training:
            images = crop_and_flip(images)
        batch = [normalise(images, self.mean, self.std), labels]
        # Lightning converts inputs to the Trainer's precision before this hook, when they are bytes yet.
        return batch if trainer is None else trainer.precision_plugin.convert_input(batch)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to floats with mean 0 and standard deviation 1 in every channel."""
    return functional.normalize(functional.to_dtype(images, torch.float32, scale=True), list(mean), list(std))


def crop_and_flip(images: Tensor) -> Tensor:
    """The usual augmentation for small images, a batch at once: padded by 4 black pixels, cropped, flipped or not.

    Drawn from torch's global generator on the CPU: what a client draws does not depend on where it trains.
    """
    samples, _, height, width = images.shape
    crops = pad(images, [_PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
    top, left = torch.randint(2 * _PADDING + 1, (2, samples)).to(images.device, non_blocking=True)
    cropped = crops[torch.arange(samples, device=images.device), :, top, left]
    flipped = torch.randint(2, (samples, 1, 1, 1)).bool().to(images.device, non_blocking=True)
    return torch.where(flipped, cropped.flip(3), cropped)
