"""Folders of image files, one folder a class."""

from abc import abstractmethod
from pathlib import Path

import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from fl_lightning.data.cache import Tensors, cached, fingerprint_of
from fl_lightning.data.decoding import decode
from fl_lightning.data.images import ImageSource

#: a file and its class
Sample = tuple[str, int]


class Folders(ImageSource):
    """Base of the data sets that come as image files: decoded once, then read from a cache beside them.

    Args:
        root: the folder with the data.
        batch_size: samples a training batch.
        image_size: the shorter side of every image is resized to it and the middle is taken. Needed if the images
            differ in size.
        mean: of each channel, for the normalisation; by default that of the training images.
        std: of each channel; by default that of the training images.
        train_fraction: share of the training images that is used at all.
        validation_fraction: share of those which is split off, before clients share the rest, and watched from round
            to round. 0 watches the test set.
        augment: whether training images are shifted by up to 4 pixels and flipped at random.
    """

    #: the classes' names, in the order of the labels
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
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, augment)
        if image_size is not None and image_size < 1:
            raise MisconfigurationException(
                f"image_size={image_size}: set data.source.init_args.image_size to 1 or more"
            )
        if (mean is None) != (std is None):
            raise MisconfigurationException(
                f"mean={mean} and std={std}: set both in data.source.init_args, or leave both out"
            )
        self.root = Path(root).expanduser().absolute()
        self.image_size = image_size
        self._given = None if mean is None or std is None else (tuple(mean), tuple(std))

    @property
    def folder(self) -> Path:
        """The folder that holds the training and the test part."""
        return self.root

    @abstractmethod
    def samples(self) -> tuple[list[Sample], list[Sample]]:
        """The files of the training and of the test part; ``classes`` is known afterwards."""

    def prepare_data(self) -> None:
        """Called in one process only: that one decodes the files, the others find its cache."""
        self.setup("fit")

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        """Both parts, from the cache if no file has changed."""
        train, test = self.samples()
        paths = [path for path, _ in (*train, *test)]
        content = cached(
            self.folder,
            f"images-{self.image_size or 'original'}",
            fingerprint_of(f"images 1 {self.image_size} {len(train)}", paths, self.folder),
            lambda: _decoded(paths, len(train), self.image_size),
        )
        images = content["images"]
        self.mean, self.std = self._given or (tuple(content["mean"].tolist()), tuple(content["std"].tolist()))
        if len(self.mean) != images.shape[1] or len(self.std) != images.shape[1]:
            raise MisconfigurationException(
                f"mean={list(self.mean)} and std={list(self.std)}, but the images have {images.shape[1]} channels:"
                " set data.source.init_args.mean and std to one value a channel, or leave both out"
            )
        labels = torch.tensor([label for _, label in (*train, *test)])
        return (
            TensorDataset(images[: len(train)], labels[: len(train)]),
            TensorDataset(images[len(train) :], labels[len(train) :]),
        )

    def _training_samples(self) -> list[Sample]:
        """The folders of the training part say which classes there are; every one has images."""
        self.classes = _folders_in(self.folder / "train")
        samples = self._samples_in(self.folder / "train")
        if not samples:
            raise MisconfigurationException(self._where())
        empty = set(range(len(self.classes))) - {label for _, label in samples}
        if empty:
            raise MisconfigurationException(
                f"{self.folder / 'train' / self.classes[min(empty)]} holds no images ({', '.join(IMG_EXTENSIONS)}):"
                " delete it, or put the class's images there"
            )
        return samples

    def _samples_in(self, part: Path) -> list[Sample]:
        """All image files below the classes' folders, sorted."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return make_dataset(str(part), numbers, IMG_EXTENSIONS, allow_empty=True) if numbers else []

    @abstractmethod
    def _where(self) -> str:
        """What is missing, and how to get it."""


class ImageFolder(Folders):
    """Any image files, laid out as ``train/<class>/*`` and ``test/<class>/*``; without ``test``, ``val`` is tested on.

    They are RGB, or grey if all are. Classes are numbered by name.
    """

    def samples(self) -> tuple[list[Sample], list[Sample]]:
        train = self._training_samples()
        part = self.folder / ("test" if (self.folder / "test").is_dir() else "val")
        unknown = sorted(set(_folders_in(part)) - set(self.classes))
        if unknown:
            raise MisconfigurationException(
                f"{part / unknown[0]} is a class that {self.folder / 'train'} does not have:"
                " delete it, or add the class there"
            )
        test = self._samples_in(part) if part.is_dir() else []
        if not test:
            raise MisconfigurationException(self._where())
        return train, test

    def _where(self) -> str:
        return (
            f"there are no images in {self.folder}/train/<class>/ and {self.folder}/test/<class>/ (or val/<class>/):"
            " set data.source.init_args.root to a folder that has them"
        )


class TinyImageNet(Folders):
    """110,000 photographs of 64 × 64 pixels in 200 classes; its ``val`` part, 10,000 of them, is tested on.

    Le, Yang. Tiny ImageNet Visual Recognition Challenge. 2015. Expected as tiny-imagenet-200.zip is laid out.
    """

    @property
    def folder(self) -> Path:
        return self.root / "tiny-imagenet-200"

    def samples(self) -> tuple[list[Sample], list[Sample]]:
        return self._training_samples(), self._annotated()

    def _annotated(self) -> list[Sample]:
        """The files of ``val``, whose classes are in a list of their own."""
        annotations = self.folder / "val" / "val_annotations.txt"
        if not annotations.is_file():
            raise MisconfigurationException(self._where())
        numbers = {name: number for number, name in enumerate(self.classes)}
        found = []
        for line, text in enumerate(annotations.read_text().splitlines(), 1):
            name, _, rest = text.partition("\t")
            path = annotations.parent / "images" / name
            label = numbers.get(rest.split("\t")[0])
            if label is None or not path.is_file():
                raise MisconfigurationException(
                    f"{annotations}, line {line}: {text!r} names no image in {path.parent} and class in train:"
                    " get the data set again"
                )
            found.append((str(path), label))
        return found

    def _where(self) -> str:
        return (
            f"tiny-ImageNet is not in {self.folder}: unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip"
            f" in {self.root}, or set data.source.init_args.root to the folder that holds tiny-imagenet-200"
        )


def _folders_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _decoded(paths: list[str], train: int, image_size: int | None) -> Tensors:
    images = decode(paths, image_size)
    mean, std = statistics(images[:train])
    return {"images": images, "mean": mean, "std": std}


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in units of the brightest value; exact, from the histograms."""
    histograms = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    shares = torch.stack(histograms).double() / (images.numel() / images.shape[1])
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ values
    variance = (shares * (values - mean.unsqueeze(1)) ** 2).sum(1)
    return mean, torch.where(variance > 0, variance.sqrt(), 1.0)
