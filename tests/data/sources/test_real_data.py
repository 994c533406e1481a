"""Tests on the real data sets, if FL_LIGHTNING_DATA names a folder that has them in torchvision's layout."""

import os
from pathlib import Path

import pytest
import torch

from fl_lightning.data import CIFAR10, MNIST, FashionMNIST, ImageFolder, Sentiment140, TinyImageNet
from fl_lightning.data.sources.folders import statistics

ROOT = os.environ.get("FL_LIGHTNING_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ROOT is None, reason="FL_LIGHTNING_DATA is not set to a folder with the real data sets"),
]


def loaded(source, folder: str):
    if not Path(ROOT, folder).is_dir():
        pytest.skip(f"there is no folder {Path(ROOT, folder)}")
    source.prepare_data()
    source.setup("fit")
    return source


@pytest.mark.parametrize(
    ("source", "folder", "train", "test", "shape"),
    [
        (MNIST, "MNIST", 60_000, 10_000, (1, 28, 28)),
        (FashionMNIST, "FashionMNIST", 60_000, 10_000, (1, 28, 28)),
        (CIFAR10, "cifar-10-batches-py", 50_000, 10_000, (3, 32, 32)),
        (lambda root: ImageFolder(f"{root}/cifar10-images"), "cifar10-images", 50_000, 10_000, (3, 32, 32)),
        (TinyImageNet, "tiny-imagenet-200", 100_000, 10_000, (3, 64, 64)),
    ],
    ids=["MNIST", "FashionMNIST", "CIFAR10", "CIFAR-10 as a folder", "TinyImageNet"],
)
def test_images_have_the_published_numbers_and_statistics(source, folder, train, test, shape):
    data = loaded(source(ROOT), folder)
    images, labels = data.parts.train.tensors
    assert (len(images), len(data.parts.test)) == (train, test)
    assert images.shape[1:] == shape
    if folder != "MNIST":  # its classes differ in size
        assert len(labels.bincount().unique()) == 1
    mean, std = statistics(images)
    torch.testing.assert_close(mean.tolist(), list(data.channel_mean), atol=1e-4, rtol=0)
    torch.testing.assert_close(std.tolist(), list(data.channel_std), atol=1e-4, rtol=0)


def test_tweets_are_read_and_most_of_their_words_are_known():
    data = loaded(Sentiment140(ROOT), "sentiment140")
    inputs, labels = data.parts.test.tensors
    assert labels.float().mean().item() == pytest.approx(0.5, abs=0.01)
    assert len(data.vocabulary) == 10_000
    assert (inputs == 1).sum() < 0.1 * (inputs > 0).sum()
