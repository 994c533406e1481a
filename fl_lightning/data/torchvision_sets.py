"""MNIST, Fashion-MNIST and CIFAR-10, in the files that torchvision downloads."""

from abc import abstractmethod
from http.client import HTTPException
from pathlib import Path

import torch
import torchvision
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import TensorDataset
from torchvision.datasets.utils import check_integrity

from fl_lightning.data.idx import read_idx
from fl_lightning.data.images import ImageSource

_IDX_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


class Downloadable(ImageSource):
    """Base of the data sets that torchvision can download.

    Args:
        root: the folder with torchvision's data sets.
        batch_size: samples a training batch.
        download: whether to download the data if it is not there.
        train_fraction: share of the official training part that is used at all.
        validation_fraction: share of that which is split off, before clients share the rest, and watched from round to
            round. 0 watches the test set.
        augment: whether training images are shifted by up to 4 pixels and flipped at random.
    """

    #: where the files are to be found without a download, as part of an error message
    elsewhere = ""

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 32,
        download: bool = False,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        augment: bool = False,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, augment)
        self.root = Path(root).expanduser().absolute()
        self.download = download

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where torchvision puts the files."""

    @abstractmethod
    def is_there(self) -> bool:
        """Whether all files are there."""

    @abstractmethod
    def fetch(self) -> None:
        """Downloads them."""

    def prepare_data(self) -> None:
        """Called in one process only: downloads what is wanted and not there."""
        if not self.download or self.is_there():
            return
        try:
            self.fetch()
        except (RuntimeError, OSError, HTTPException) as error:
            raise MisconfigurationException(
                f"download=true, but {type(self).__name__} cannot be downloaded ({' '.join(str(error).split())}):"
                f" copy torchvision's files to {self.folder}{self.elsewhere}"
            ) from error

    def check_there(self) -> None:
        """Says where the data is expected, and how to get it."""
        if not self.is_there():
            raise MisconfigurationException(
                f"{type(self).__name__} is not in {self.folder}: set data.source.init_args.root to the folder above"
                f" {self.folder.relative_to(self.root)}, or set data.source.init_args.download to true,"
                f" or copy torchvision's files there{self.elsewhere}"
            )


class MNIST(Downloadable):
    """70,000 handwritten digits of 28 × 28 pixels in ten classes, 10,000 of them to test on.

    LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document Recognition. 1998.
    """

    mean, std = (0.1307,), (0.3081,)
    #: the class by which torchvision downloads it, and whose name is the folder
    _of_torchvision: type[torchvision.datasets.MNIST] = torchvision.datasets.MNIST
    #: further folders that may hold the files
    _folders: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        return self.root / self._of_torchvision.__name__ / "raw"

    def is_there(self) -> bool:
        return bool(self._files())

    def fetch(self) -> None:
        self._of_torchvision(self.root, download=True)

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        self.check_there()
        train_images, train_labels, test_images, test_labels = self._files()
        return _read_pair(train_images, train_labels), _read_pair(test_images, test_labels)

    def _files(self) -> list[Path]:
        """The four files, plain or as .gz, in the first folder that has them all."""
        for folder in (self.folder, *self._folders):
            plain = [folder / name for name in _IDX_FILES]
            files = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
            if all(path.is_file() for path in files):
                return files
        return []


def _read_pair(images_file: Path, labels_file: Path) -> TensorDataset:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise MisconfigurationException(
            f"{labels_file} does not belong to {images_file}, for the shapes are {tuple(labels.shape)} and"
            f" {tuple(images.shape)}: delete both and get them again"
        )
    return TensorDataset(images.unsqueeze(1), labels.long())


class FashionMNIST(MNIST):
    """70,000 pictures of clothes of 28 × 28 pixels in ten classes, 10,000 of them to test on.

    Xiao, Rasul, Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
    """

    mean, std = (0.2860,), (0.3530,)
    elsewhere = ", or install Debian's package dataset-fashion-mnist"
    _of_torchvision = torchvision.datasets.FashionMNIST
    _folders = (Path("/usr/share/datasets/fashion-mnist"),)  # where Debian's package puts them


class CIFAR10(Downloadable):
    """60,000 colour photographs of 32 × 32 pixels in ten classes, 10,000 of them to test on.

    Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
    """

    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    elsewhere = ", or unpack cifar-10-python.tar.gz in the folder above"

    @property
    def folder(self) -> Path:
        return self.root / torchvision.datasets.CIFAR10.base_folder

    def is_there(self) -> bool:
        return all(path.is_file() for path in self._checksums())

    def fetch(self) -> None:
        torchvision.datasets.CIFAR10(self.root, download=True)

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        self.check_there()
        try:
            parts = [torchvision.datasets.CIFAR10(self.root, train=train) for train in (True, False)]
        except RuntimeError as error:
            broken = [path for path, md5 in self._checksums().items() if not check_integrity(path, md5)]
            raise MisconfigurationException(
                f"{broken[0]} is broken, its checksum is not the published one: delete it and get it again"
            ) from error
        train, test = (
            TensorDataset(torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets))
            for part in parts
        )
        return train, test

    def _checksums(self) -> dict[Path, str]:
        published = torchvision.datasets.CIFAR10
        files = [*published.train_list, *published.test_list, (published.meta["filename"], published.meta["md5"])]
        return {self.folder / name: md5 for name, md5 in files}
