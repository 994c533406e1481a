import gzip
from http.client import IncompleteRead
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data import CIFAR10, MNIST, FashionMNIST
from fl_lightning.data.idx import read_idx
from tests.data.files import bytes_of, message_of, set_up, write_cifar10, write_idx, write_mnist


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5)])
def test_idx_files_are_read_plain_and_compressed(tmp_path, suffix, shape):
    array = bytes_of(shape)
    write_idx(tmp_path / f"file{suffix}", array)
    assert np.array_equal(read_idx(tmp_path / f"file{suffix}").numpy(), array)


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
def test_mnist_and_fashion_mnist_are_read_as_torchvision_reads_them(tmp_path, source):
    write_mnist(tmp_path / source.__name__ / "raw")
    parts = set_up(source(tmp_path)).parts
    for dataset, train in ((parts.train, True), (parts.test, False)):
        theirs = getattr(torchvision.datasets, source.__name__)(tmp_path, train=train)
        assert torch.equal(dataset.tensors[0], theirs.data.unsqueeze(1))
        assert torch.equal(dataset.tensors[1], theirs.targets)
        assert [tensor.dtype for tensor in dataset.tensors] == [torch.uint8, torch.int64]


def test_files_need_not_be_unpacked(tmp_path):
    arrays = write_mnist(tmp_path / "MNIST" / "raw", suffix=".gz")
    images = set_up(MNIST(tmp_path)).parts.train.tensors[0]
    assert np.array_equal(images[:, 0].numpy(), arrays["train-images-idx3-ubyte"])


def test_fashion_mnist_is_found_where_debian_installs_it(tmp_path, monkeypatch):
    assert [str(folder) for folder in FashionMNIST._folders] == ["/usr/share/datasets/fashion-mnist"]
    monkeypatch.setattr(FashionMNIST, "_folders", (tmp_path / "debian",))
    arrays = write_mnist(tmp_path / "debian", suffix=".gz")
    source = set_up(FashionMNIST(tmp_path / "empty", download=True))  # nothing is left to download
    assert source.parts.test.tensors[1].tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()


def test_cifar10_is_read_as_torchvision_reads_it(tmp_path, monkeypatch):
    images = write_cifar10(tmp_path, monkeypatch)
    parts = set_up(CIFAR10(tmp_path)).parts
    expected = np.concatenate([images[f"data_batch_{number}"] for number in range(1, 6)])
    assert np.array_equal(parts.train.tensors[0].numpy(), expected)
    assert np.array_equal(parts.test.tensors[0].numpy(), images["test_batch"])
    assert parts.train.tensors[1].tolist() == torchvision.datasets.CIFAR10(tmp_path).targets
    assert [tensor.dtype for tensor in parts.test.tensors] == [torch.uint8, torch.int64]
    assert parts.train.tensors[0].is_contiguous()


@pytest.mark.parametrize(
    ("source", "folder"), [(MNIST, "MNIST/raw"), (FashionMNIST, "FashionMNIST/raw"), (CIFAR10, "cifar-10-batches-py")]
)
def test_data_that_is_not_there_is_said_to_be_expected_where_and_how_to_get_it(tmp_path, monkeypatch, source, folder):
    monkeypatch.setattr(FashionMNIST, "_folders", ())
    message = message_of(source(tmp_path))
    assert f"{source.__name__} is not in {tmp_path / folder}" in message
    assert "data.source.init_args.download to true" in message
    assert ("dataset-fashion-mnist" in message) == (source is FashionMNIST)


@pytest.mark.parametrize("error", [URLError("no route to host"), RuntimeError("two\nlines"), IncompleteRead(b"")])
@pytest.mark.parametrize("source", [MNIST, FashionMNIST, CIFAR10])
def test_a_download_that_fails_says_so_in_one_line(tmp_path, monkeypatch, source, error):
    def fail(self):
        raise error

    monkeypatch.setattr(FashionMNIST, "_folders", ())
    monkeypatch.setattr(getattr(torchvision.datasets, source.__name__), "download", fail)
    message = message_of(source(tmp_path, download=True))
    assert f"{source.__name__} cannot be downloaded" in message
    assert str(source(tmp_path).folder) in message


def test_nothing_is_downloaded_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", lambda self: pytest.fail("downloads"))
    assert "is not in" in message_of(MNIST(tmp_path))


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("train-images-idx3-ubyte", cut, "bytes of data instead of 31360"),
        ("t10k-labels-idx1-ubyte", lambda content: content + b"more", "bytes of data instead of 20"),
        ("t10k-labels-idx1-ubyte", lambda content: content[:6], "ends within its header"),
        ("train-labels-idx1-ubyte", lambda content: b"<html>" + content, "does not begin as an idx file"),
        ("train-labels-idx1-ubyte", lambda content: b"", "does not begin as an idx file"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path, name, damage, why):
    write_mnist(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / name
    path.write_bytes(damage(path.read_bytes()))
    message = message_of(MNIST(tmp_path))
    assert message.startswith(f"{path} is broken")
    assert why in message


@pytest.mark.parametrize("damage", [cut, lambda content: content[:-20] + b"x" * 20, lambda content: b"no gzip"])
def test_a_broken_compressed_file_is_named(tmp_path, damage):
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(bytes_of((5000,)).tobytes())))
    with pytest.raises(MisconfigurationException, match=r"file\.gz is broken"):
        read_idx(path)


def test_labels_of_other_images_are_refused(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.zeros(7, dtype=np.uint8))
    assert "train-labels-idx1-ubyte does not belong to" in message_of(MNIST(tmp_path))


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_broken_batch_of_cifar10_is_named(tmp_path, monkeypatch, name):
    write_cifar10(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-py" / name
    path.write_bytes(cut(path.read_bytes()))
    assert message_of(CIFAR10(tmp_path)).startswith(f"{path} is broken")
