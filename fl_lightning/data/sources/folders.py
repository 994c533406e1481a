"""Data sets that come as image files, in one folder per class."""

from abc import abstractmethod
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.data.sources._cache import Tensors, cached, fingerprint_of
from fl_lightning.data.sources._decoding import decode
from fl_lightning.data.sources.images import ImageSource

#: The path of a file, and its class.
Sample = tuple[str, int]


class Folders(ImageSource):
    """Base class of data sets that come as image files. They are decoded once, then read from a cache next to them.

    Args:
        root: folder that holds the data.
        batch_size: samples per training batch.
        image_size: height and width of the images: the shorter side is resized to it and the middle is cropped. Needed
            if the images differ in size.
        mean: mean of each channel, for the normalisation; by default, the mean over the training images.
        std: standard deviation of each channel; by default, the standard deviation over the training images.
        train_fraction: fraction of the training samples to use.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        augment: whether training images are shifted by up to 4 pixels and flipped at random.
        evaluation_batch_size: samples per batch of validation, test and prediction. With 128, convolutional networks
            need less memory and are often faster on a CPU.
    """

    #: Names of the classes, in the order of the labels.
    classes: list[str]

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 32,
        image_size: int | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        augment: bool = False,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, augment, evaluation_batch_size)
        if image_size is not None:
            check_number("image_size", image_size, at_least=1, setting="data.source.init_args.image_size")
        if (mean is None) != (std is None):
            raise MisconfigurationError(
                f"mean={mean} and std={std}: set both in data.source.init_args, or leave both out"
            )
        self.root = Path(root).expanduser().absolute()
        self.image_size = image_size
        self.mean = mean
        self.std = std

    @property
    def folder(self) -> Path:
        """The folder that holds the training and test parts."""
        return self.root

    @abstractmethod
    def samples(self) -> tuple[list[Sample], list[Sample]]:
        """Return the files of the training and test parts, and set ``classes``."""

    def prepare_data(self) -> None:
        """Decode the files into the cache. Lightning calls this in one process; the others read the cache."""
        self.setup("fit")

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        """Return both parts, from the cache if no file has changed."""
        train, test = self.samples()
        paths = [path for path, _ in (*train, *test)]
        content = cached(
            self.folder,
            f"images-{self.image_size or 'original'}",
            fingerprint_of(f"images 1 {self.image_size} {len(train)}", paths, self.folder),
            lambda: _decoded(paths, len(train), self.image_size),
        )
        images = content["images"]
        self.channel_mean = tuple(content["mean"].tolist() if self.mean is None else self.mean)
        self.channel_std = tuple(content["std"].tolist() if self.std is None else self.std)
        if len(self.channel_mean) != images.shape[1] or len(self.channel_std) != images.shape[1]:
            raise MisconfigurationError(
                f"mean={self.mean} and std={self.std}, but the images have {images.shape[1]} channels:"
                " set data.source.init_args.mean and std to one value per channel, or leave both out"
            )
        labels = torch.tensor([label for _, label in (*train, *test)])
        return (
            TensorDataset(images[: len(train)], labels[: len(train)]),
            TensorDataset(images[len(train) :], labels[len(train) :]),
        )

    def training_samples(self) -> list[Sample]:
        """Return the files of the training part, and set ``classes`` to the names of its folders."""
        self.classes = _folders_in(self.folder / "train")
        samples = self.samples_in(self.folder / "train")
        if not samples:
            raise MisconfigurationError(self.missing_message())
        empty = set(range(len(self.classes))) - {label for _, label in samples}
        if empty:
            raise MisconfigurationError(
                f"{self.folder / 'train' / self.classes[min(empty)]} holds no images ({', '.join(IMG_EXTENSIONS)}):"
                " delete it, or put images of the class there"
            )
        return samples

    def samples_in(self, part: Path) -> list[Sample]:
        """Return all image files below the folders of the classes, sorted."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return make_dataset(str(part), numbers, IMG_EXTENSIONS, allow_empty=True) if numbers else []

    @abstractmethod
    def missing_message(self) -> str:
        """Return the error message for missing data: what is missing, and how to get it."""


class ImageFolder(Folders):
    """Any image files, laid out as ``train/<class>/*`` and ``test/<class>/*``, or ``val`` instead of ``test``.

    Images become RGB, or grey if all of them are grey. Classes are numbered in the order of their names.
    """

    def samples(self) -> tuple[list[Sample], list[Sample]]:
        train = self.training_samples()
        part = self.folder / ("test" if (self.folder / "test").is_dir() else "val")
        unknown = sorted(set(_folders_in(part)) - set(self.classes))
        if unknown:
            raise MisconfigurationError(
                f"{part / unknown[0]} is a class that {self.folder / 'train'} does not have:"
                " delete it, or add the class there"
            )
        test = self.samples_in(part) if part.is_dir() else []
        if not test:
            raise MisconfigurationError(self.missing_message())
        return train, test

    def missing_message(self) -> str:
        return (
            f"there are no images in {self.folder}/train/<class>/ and {self.folder}/test/<class>/ (or val/<class>/):"
            " set data.source.init_args.root to a folder that has them"
        )


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted and without hidden ones."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _decoded(paths: list[str], train: int, image_size: int | None) -> Tensors:
    """Decode all files, and compute the statistics of the first ``train`` images."""
    images = decode(paths, image_size)
    mean, std = statistics(images[:train])
    return {"images": images, "mean": mean, "std": std}


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel, for pixel values from 0 to 1.

    They are exact, because they are computed from histograms. The deviation of a constant channel is 1 instead of 0.
    """
    histograms = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    shares = torch.stack(histograms).double() / (images.numel() / images.shape[1])
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    variance = (shares * (values - mean.unsqueeze(1)) ** 2).sum(1)
    return mean, torch.where(variance > 0, variance.sqrt(), 1.0)
