"""The data sets that the package can read, as LightningDataModules."""

from fl_lightning.data.sources.digits import Digits
from fl_lightning.data.sources.folders import ImageFolder
from fl_lightning.data.sources.sentiment140 import Sentiment140
from fl_lightning.data.sources.tiny_imagenet import TinyImageNet
from fl_lightning.data.sources.torchvision import CIFAR10, MNIST, FashionMNIST

__all__ = ["CIFAR10", "MNIST", "Digits", "FashionMNIST", "ImageFolder", "Sentiment140", "TinyImageNet"]
