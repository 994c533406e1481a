"""Decoding image files into one tensor."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional
from tqdm import tqdm

from fl_lightning.core.errors import MisconfigurationError

_GREY = ("1", "L", "LA")
_FILES_PER_TASK = 256


def decode(paths: Sequence[str], image_size: int | None = None) -> Tensor:
    """Return all images as one uint8 tensor (samples, channels, height, width), grey if all are grey, otherwise RGB.

    Args:
        paths: paths of the files.
        image_size: height and width of the images: the shorter side is resized to it and the middle is cropped. Without
            it, all images must have the same size.
    """
    _, height, width = _read(paths[0], image_size).shape
    images = np.empty((len(paths), 3, height, width), dtype=np.uint8)

    def fill(start: int) -> bool:
        """Read the files of one task, and return whether all of them are grey."""
        grey = True
        for number, path in enumerate(paths[start : start + _FILES_PER_TASK], start):
            image = _read(path, image_size)
            if image.shape[1:] != (height, width):
                raise MisconfigurationError(
                    f"{path} has {image.shape[2]} × {image.shape[1]} pixels, but {paths[0]} has {width} × {height}:"
                    " set data.source.init_args.image_size to resize them"
                )
            images[number] = image
            grey &= len(image) == 1
        return grey

    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        with tqdm(total=len(paths), desc="Decoding images", unit="", leave=False, delay=2, mininterval=0.5) as bar:
            all_grey = True
            for grey in pool.map(fill, range(0, len(paths), _FILES_PER_TASK)):
                all_grey &= grey
                bar.update(min(_FILES_PER_TASK, len(paths) - bar.n))
    finally:
        pool.shutdown(cancel_futures=True)
    return torch.from_numpy(images[:, :1].copy() if all_grey else images)


def _read(path: str, image_size: int | None) -> np.ndarray:
    """Return the pixels of a file, with one channel if it is grey and three otherwise."""
    try:
        with Image.open(path) as picture:
            return _pixels(picture, image_size)
    except Exception as error:  # each of Pillow's decoders raises its own errors
        raise MisconfigurationError(
            f"{path} cannot be decoded ({' '.join(str(error).split())}): delete or replace it"
        ) from error


def _pixels(picture: Image.Image, image_size: int | None) -> np.ndarray:
    """Return the pixels of an image as bytes (channels, height, width)."""
    if picture.mode.startswith("I;16"):  # Pillow would clip values above 255
        picture = Image.fromarray((np.asarray(picture) // 256).astype(np.uint8))
    picture = picture.convert("L" if picture.mode in _GREY else "RGB")
    if image_size is not None:
        picture = functional.center_crop(functional.resize(picture, [image_size]), [image_size, image_size])
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
