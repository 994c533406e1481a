import os

import numpy as np
import pytest
import torch

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ImageFolder, TinyImageNet
from fl_lightning.data.sources import folders
from fl_lightning.data.sources._decoding import decode
from tests.data.files import bytes_of, message_of, set_up, write_folders, write_image


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """Record how many files each call decodes."""
    calls: list[int] = []

    def counting(paths, image_size=None):
        calls.append(len(paths))
        return decode(paths, image_size)

    monkeypatch.setattr(folders, "decode", counting)
    return calls


def test_every_folder_is_a_class_and_classes_are_numbered_by_name(tmp_path):
    write_folders(tmp_path, classes=("zebra", "ant"))
    (tmp_path / "train" / ".hidden").mkdir()
    source = set_up(ImageFolder(tmp_path))
    assert source.classes == ["ant", "zebra"]
    images, labels = source.parts.train.tensors
    assert labels.tolist() == [0] * 4 + [1] * 4
    assert images.shape == (8, 3, 8, 6)
    assert [images.dtype, labels.dtype] == [torch.uint8, torch.int64]
    for number in range(4):  # zebra was written first
        assert np.array_equal(images[4 + number].permute(1, 2, 0).numpy(), bytes_of((8, 6, 3), number))
    assert source.parts.test.tensors[1].tolist() == [0, 0, 1, 1]


def test_val_is_the_test_part_if_there_is_no_test_folder(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    assert len(set_up(ImageFolder(tmp_path)).parts.test) == 4


def test_a_class_may_be_missing_from_the_test_part(tmp_path):
    write_folders(tmp_path)
    for path in (tmp_path / "test" / "cat").iterdir():
        path.unlink()
    assert set_up(ImageFolder(tmp_path)).parts.test.tensors[1].tolist() == [1, 1]


def test_statistics_come_from_the_training_images_unless_given(tmp_path):
    write_folders(tmp_path)
    source = set_up(ImageFolder(tmp_path))
    pixels = source.parts.train.tensors[0].numpy().astype(np.float64) / 255
    np.testing.assert_allclose(source.channel_mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(source.channel_std, pixels.std(axis=(0, 2, 3)), rtol=1e-12)
    given = set_up(ImageFolder(tmp_path, mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1]))
    assert (given.channel_mean, given.channel_std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))


def test_a_constant_channel_can_be_normalised():
    mean, std = folders.statistics(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8))
    assert mean.item() == pytest.approx(0.2)
    assert std.item() == 1.0


def test_files_are_decoded_once(tmp_path, decoded):
    write_folders(tmp_path)
    first, second = (set_up(ImageFolder(tmp_path)) for _ in range(2))
    assert decoded == [12]
    assert torch.equal(first.parts.train.tensors[0], second.parts.train.tensors[0])
    for name in ("channel_mean", "channel_std", "classes"):
        assert getattr(first, name) == getattr(second, name)


def test_every_image_size_has_its_own_cache(tmp_path, decoded):
    write_folders(tmp_path)
    for size in (None, 4, None, 4):
        set_up(ImageFolder(tmp_path, image_size=size))
    assert decoded == [12, 12]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("other.png")),
        lambda path: write_image(path, bytes_of((8, 6, 3), 77)),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: path.rename(path.parents[2] / "test" / "cat" / "moved.png"),
    ],
    ids=["deleted", "renamed", "rewritten", "touched", "moved to the test part"],
)
def test_files_are_decoded_again_after_a_change(tmp_path, decoded, change):
    write_folders(tmp_path)
    set_up(ImageFolder(tmp_path))
    change(tmp_path / "train" / "cat" / "0.png")
    set_up(ImageFolder(tmp_path))
    assert len(decoded) == 2


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
def test_a_broken_image_is_named(tmp_path, suffix):
    write_folders(tmp_path, suffix=suffix)
    path = tmp_path / "train" / "dog" / f"2{suffix}"
    path.write_bytes(path.read_bytes()[:60])
    assert message_of(ImageFolder(tmp_path)).startswith(f"{path} cannot be decoded")


def test_an_empty_image_is_named(tmp_path):
    write_folders(tmp_path)
    path = tmp_path / "test" / "dog" / "1.png"
    path.write_bytes(b"")
    assert str(path) in message_of(ImageFolder(tmp_path))


def test_images_of_different_sizes_need_image_size(tmp_path, decoded):
    write_folders(tmp_path)
    path = tmp_path / "train" / "dog" / "3.png"
    write_image(path, bytes_of((9, 7, 3)))
    message = message_of(ImageFolder(tmp_path))
    assert f"{path} has 7 × 9 pixels" in message
    assert "6 × 8" in message
    assert "image_size" in message
    assert set_up(ImageFolder(tmp_path, image_size=5)).parts.train.tensors[0].shape == (8, 3, 5, 5)


def empty_class(root):
    write_folders(root)
    (root / "train" / "eel").mkdir()
    return ImageFolder(root)


def class_in_test_only(root):
    write_folders(root)
    write_image(root / "test" / "eel" / "0.png", bytes_of((8, 6, 3)))
    return ImageFolder(root)


def no_test_part(root):
    write_folders(root, test=0)
    return ImageFolder(root)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ImageFolder, "train/<class>/"),
        (no_test_part, "test/<class>/"),
        (TinyImageNet, "tiny-imagenet-200.zip"),
        (empty_class, "eel holds no images"),
        (class_in_test_only, "eel is a class that"),
        (lambda root: (write_folders(root), ImageFolder(root, mean=[0.5], std=[0.5]))[1], "have 3 channels"),
    ],
)
def test_bad_folders_are_refused(tmp_path, make, message):
    found = message_of(make(tmp_path))
    assert message in found
    assert str(tmp_path) in found or "channels" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"image_size": 0}, "image_size=0"), ({"mean": [0.5]}, "set both"), ({"std": [0.5]}, "set both")],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(MisconfigurationError, match=message):
        ImageFolder(**arguments)
