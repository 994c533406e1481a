from http.client import IncompleteRead
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import CIFAR10, MNIST, FashionMNIST
from tests.data.files import first_half, message_of, set_up, write_cifar10, write_idx, write_mnist


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
def test_mnist_and_fashion_mnist_are_read_as_torchvision_reads_them(tmp_path, source):
    write_mnist(tmp_path / source.__name__ / "raw")
    parts = set_up(source(tmp_path)).parts
    for dataset, train in ((parts.train, True), (parts.test, False)):
        theirs = getattr(torchvision.datasets, source.__name__)(tmp_path, train=train)
        assert torch.equal(dataset.tensors[0], theirs.data.unsqueeze(1))
        assert torch.equal(dataset.tensors[1], theirs.targets)
        assert [tensor.dtype for tensor in dataset.tensors] == [torch.uint8, torch.int64]


def test_compressed_files_are_read(tmp_path):
    arrays = write_mnist(tmp_path / "MNIST" / "raw", suffix=".gz")
    images = set_up(MNIST(tmp_path)).parts.train.tensors[0]
    assert np.array_equal(images[:, 0].numpy(), arrays["train-images-idx3-ubyte"])


def test_fashion_mnist_is_found_where_debian_installs_it(tmp_path, monkeypatch):
    assert [str(folder) for folder in FashionMNIST.other_folders] == ["/usr/share/datasets/fashion-mnist"]
    monkeypatch.setattr(FashionMNIST, "other_folders", (tmp_path / "debian",))
    arrays = write_mnist(tmp_path / "debian", suffix=".gz")
    source = set_up(FashionMNIST(tmp_path / "empty", download=True))  # nothing needs to be downloaded
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


def test_pooled_images_are_split_into_training_and_test_with_equal_shares_of_every_class(tmp_path, monkeypatch):
    images = write_cifar10(tmp_path, monkeypatch, per_batch=20)  # 100 official training and 20 test images
    parts = set_up(CIFAR10(tmp_path, train_fraction=0.75, validation_fraction=0.2, pool=True)).parts
    # 0.75 of 120 are 90, of which 18 are for validation
    assert [len(part) for part in parts] == [72, 18, 30]
    assert torch.bincount(parts.test.tensors[1]).tolist() == [3] * 10
    pooled = torch.cat([part.tensors[0] for part in parts]).flatten(1).unique(dim=0)
    assert torch.equal(pooled, torch.from_numpy(np.concatenate(list(images.values()))).flatten(1).unique(dim=0))


def test_pooling_without_a_test_set_is_refused():
    with pytest.raises(MisconfigurationError, match="pool=true and train_fraction=1 leave no test set"):
        MNIST(pool=True)


@pytest.mark.parametrize(
    ("source", "folder"), [(MNIST, "MNIST/raw"), (FashionMNIST, "FashionMNIST/raw"), (CIFAR10, "cifar-10-batches-py")]
)
def test_an_error_says_where_missing_data_is_expected_and_how_to_get_it(tmp_path, monkeypatch, source, folder):
    monkeypatch.setattr(FashionMNIST, "other_folders", ())
    message = message_of(source(tmp_path))
    assert f"{source.__name__} is not in {tmp_path / folder}" in message
    assert "data.source.init_args.download to true" in message
    assert ("dataset-fashion-mnist" in message) == (source is FashionMNIST)


@pytest.mark.parametrize("error", [URLError("no route to host"), RuntimeError("two\nlines"), IncompleteRead(b"")])
@pytest.mark.parametrize("source", [MNIST, FashionMNIST, CIFAR10])
def test_a_failed_download_is_reported_in_one_line(tmp_path, monkeypatch, source, error):
    def fail(self):
        raise error

    monkeypatch.setattr(FashionMNIST, "other_folders", ())
    monkeypatch.setattr(getattr(torchvision.datasets, source.__name__), "download", fail)
    message = message_of(source(tmp_path, download=True))
    assert f"{source.__name__} cannot be downloaded" in message
    assert str(source(tmp_path).folder) in message


def test_nothing_is_downloaded_without_being_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", lambda self: pytest.fail("downloads"))
    assert "is not in" in message_of(MNIST(tmp_path))


def test_labels_of_other_images_are_refused(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.zeros(7, dtype=np.uint8))
    assert "train-labels-idx1-ubyte does not belong to" in message_of(MNIST(tmp_path))


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_broken_file_of_cifar10_is_named(tmp_path, monkeypatch, name):
    write_cifar10(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-py" / name
    path.write_bytes(first_half(path.read_bytes()))
    assert message_of(CIFAR10(tmp_path)).startswith(f"{path} is broken")
