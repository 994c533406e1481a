"""MNIST, Fashion-MNIST and CIFAR-10, read from the files that torchvision downloads."""

from abc import abstractmethod
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch.utils.data import TensorDataset
from torchvision.datasets.utils import check_integrity

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data.sources._idx import read_idx
from fl_lightning.data.sources.base import Parts, hold_out
from fl_lightning.data.sources.images import ImageSource

_IDX_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


class Downloadable(ImageSource):
    """Base class of data sets that torchvision can download.

    Args:
        root: folder that holds torchvision's data sets.
        batch_size: samples per training batch.
        download: whether to download the data if it is missing.
        train_fraction: fraction of the official training samples to use.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        augment: whether training images are shifted by up to 4 pixels and flipped at random.
        pool: whether to pool the official training and test samples, so that ``train_fraction`` refers to all of them
            and the rest is the test set.
        evaluation_batch_size: samples per batch of validation, test and prediction. With 128, convolutional networks
            need less memory and are often faster on a CPU.
    """

    #: Another way to get the files, appended to error messages.
    alternative = ""

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 32,
        download: bool = False,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        augment: bool = False,
        pool: bool = False,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, augment, evaluation_batch_size)
        if pool and train_fraction == 1:
            raise MisconfigurationError(
                "pool=true and train_fraction=1 leave no test set: set data.source.init_args.train_fraction below 1"
            )
        self.root = Path(root).expanduser().absolute()
        self.download = download
        self.pool = pool

    def load(self) -> Parts:
        """Read the official parts, pool them if asked to, and split them."""
        train, test = self.read()
        if not self.pool:
            return hold_out(self, train, test)
        pooled = TensorDataset(*map(torch.cat, zip(train.tensors, test.tensors, strict=True)))
        kept, held_out = self.split(pooled.tensors[-1].numpy())
        rest = np.setdiff1d(np.arange(len(pooled)), np.concatenate([kept, held_out]))
        train, validation, test = (TensorDataset(*pooled[part]) for part in (kept, held_out, rest))
        return Parts(train, validation if len(validation) else None, test)

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder that torchvision puts the files in."""

    @abstractmethod
    def has_files(self) -> bool:
        """Return whether all files are there."""

    @abstractmethod
    def fetch(self) -> None:
        """Download the files."""

    def prepare_data(self) -> None:
        """Download the data if ``download`` is set and files are missing. Lightning calls this in one process only."""
        if not self.download or self.has_files():
            return
        try:
            self.fetch()
        except (RuntimeError, OSError, HTTPException) as error:
            raise MisconfigurationError(
                f"download=true, but {type(self).__name__} cannot be downloaded ({' '.join(str(error).split())}):"
                f" copy torchvision's files to {self.folder}{self.alternative}"
            ) from error

    def check_files(self) -> None:
        """Raise an error if files are missing; the message says where they are expected and how to get them."""
        if not self.has_files():
            raise MisconfigurationError(
                f"{type(self).__name__} is not in {self.folder}: set data.source.init_args.root to the folder above"
                f" {self.folder.relative_to(self.root)}, or set data.source.init_args.download to true,"
                f" or copy torchvision's files there{self.alternative}"
            )


class MNIST(Downloadable):
    """70,000 handwritten digits of 28 × 28 pixels in ten classes. 10,000 of them are the test set.

    LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document Recognition. 1998.
    """

    channel_mean, channel_std = (0.1307,), (0.3081,)
    #: The torchvision class that downloads the files, to a folder of the same name.
    torchvision_class: type[torchvision.datasets.MNIST] = torchvision.datasets.MNIST
    #: Further folders that may hold the files.
    other_folders: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        return self.root / self.torchvision_class.__name__ / "raw"

    def has_files(self) -> bool:
        return bool(self._files())

    def fetch(self) -> None:
        self.torchvision_class(self.root, download=True)

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        self.check_files()
        train_images, train_labels, test_images, test_labels = self._files()
        return _read_pair(train_images, train_labels), _read_pair(test_images, test_labels)

    def _files(self) -> list[Path]:
        """Return the four files, plain or as .gz, from the first folder that has them all, or an empty list."""
        for folder in (self.folder, *self.other_folders):
            plain = [folder / name for name in _IDX_FILES]
            files = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
            if all(path.is_file() for path in files):
                return files
        return []


def _read_pair(images_file: Path, labels_file: Path) -> TensorDataset:
    """Read a file of images and the file of their labels."""
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise MisconfigurationError(
            f"{labels_file} does not belong to {images_file}, because their shapes are {tuple(labels.shape)} and"
            f" {tuple(images.shape)}: delete both and download them again"
        )
    return TensorDataset(images.unsqueeze(1), labels.long())


class FashionMNIST(MNIST):
    """70,000 pictures of clothes, 28 × 28 pixels each, in ten classes. 10,000 of them are the test set.

    Xiao, Rasul, Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
    """

    channel_mean, channel_std = (0.2860,), (0.3530,)
    alternative = ", or install Debian's package dataset-fashion-mnist"
    torchvision_class = torchvision.datasets.FashionMNIST
    other_folders = (Path("/usr/share/datasets/fashion-mnist"),)  # where Debian's package puts the files


class CIFAR10(Downloadable):
    """60,000 colour photographs of 32 × 32 pixels in ten classes. 10,000 of them are the test set.

    Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
    """

    channel_mean, channel_std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    alternative = ", or unpack cifar-10-python.tar.gz in the folder above"

    @property
    def folder(self) -> Path:
        return self.root / torchvision.datasets.CIFAR10.base_folder

    def has_files(self) -> bool:
        return all(path.is_file() for path in self._checksums())

    def fetch(self) -> None:
        torchvision.datasets.CIFAR10(self.root, download=True)

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        self.check_files()
        try:
            parts = [torchvision.datasets.CIFAR10(self.root, train=train) for train in (True, False)]
        except RuntimeError as error:
            broken = [path for path, md5 in self._checksums().items() if not check_integrity(path, md5)]
            raise MisconfigurationError(
                f"{broken[0]} is broken (its checksum is not the published one): delete it and download it again"
            ) from error
        train, test = (
            TensorDataset(torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets))
            for part in parts
        )
        return train, test

    def _checksums(self) -> dict[Path, str]:
        """Return the published MD5 checksum of every file."""
        published = torchvision.datasets.CIFAR10
        files = [*published.train_list, *published.test_list, (published.meta["filename"], published.meta["md5"])]
        return {self.folder / name: md5 for name, md5 in files}
