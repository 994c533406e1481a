import os

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.data import ImageFolder, TinyImageNet, folders
from fl_lightning.data.decoding import decode
from tests.data.files import bytes_of, message_of, set_up, write_folders, write_image, write_tiny_imagenet


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """How many files were decoded, call by call."""
    calls: list[int] = []

    def counting(paths, image_size=None):
        calls.append(len(paths))
        return decode(paths, image_size)

    monkeypatch.setattr(folders, "decode", counting)
    return calls


def test_a_folder_is_a_class_and_classes_are_numbered_by_name(tmp_path):
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


def test_val_is_tested_on_where_there_is_no_test(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    assert len(set_up(ImageFolder(tmp_path)).parts.test) == 4


def test_a_class_may_be_missing_in_the_test_part(tmp_path):
    write_folders(tmp_path)
    for path in (tmp_path / "test" / "cat").iterdir():
        path.unlink()
    assert set_up(ImageFolder(tmp_path)).parts.test.tensors[1].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".pgm"])
def test_images_are_grey_if_all_are(tmp_path, suffix):
    pixels = [bytes_of((5, 4), seed) for seed in range(3)]
    paths = [tmp_path / f"{number}{suffix}" for number in range(3)]
    for path, image in zip(paths, pixels, strict=True):
        write_image(path, image)
    images = decode([str(path) for path in paths])
    assert np.array_equal(images.numpy(), np.stack(pixels)[:, None])


def test_a_grey_image_among_coloured_ones_is_made_rgb(tmp_path):
    grey, coloured = bytes_of((5, 4)), bytes_of((5, 4, 3), 1)
    write_image(tmp_path / "a.png", grey)
    write_image(tmp_path / "b.png", coloured)
    images = decode([str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    assert np.array_equal(images[0].numpy(), np.stack([grey] * 3))
    assert np.array_equal(images[1].numpy(), coloured.transpose(2, 0, 1))


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", ".png"), ("P", ".png"), ("CMYK", ".jpg"), ("LA", ".png")])
def test_any_kind_of_colours_becomes_rgb_or_grey(tmp_path, mode, suffix):
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode).save(path)
    image = decode([str(path)])
    assert image.shape == (1, 1 if mode == "LA" else 3, 4, 4)
    assert image.min() >= 254


def test_images_of_sixteen_bits_keep_their_brightness(tmp_path):
    values = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert decode([str(tmp_path / "deep.png")]).flatten().tolist() == [0, 1, 128, 255]


def test_images_are_resized_by_their_shorter_side_and_cropped_in_the_middle(tmp_path):
    pixels = np.zeros((8, 16, 3), dtype=np.uint8)
    pixels[:, 4:12] = 200
    write_image(tmp_path / "wide.png", pixels)
    write_image(tmp_path / "square.png", np.full((4, 4, 3), 200, dtype=np.uint8))
    images = decode([str(tmp_path / "wide.png"), str(tmp_path / "square.png")], image_size=8)
    assert images.shape == (2, 3, 8, 8)
    assert (images == 200).all()


def test_channels_are_normalised_by_the_training_images(tmp_path):
    write_folders(tmp_path)
    source = set_up(ImageFolder(tmp_path))
    pixels = source.parts.train.tensors[0].numpy().astype(np.float64) / 255
    np.testing.assert_allclose(source.mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(source.std, pixels.std(axis=(0, 2, 3)), rtol=1e-12)
    given = set_up(ImageFolder(tmp_path, mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1]))
    assert (given.mean, given.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))


def test_a_channel_that_never_changes_can_be_normalised():
    mean, std = folders.statistics(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8))
    assert mean.item() == pytest.approx(0.2)
    assert std.item() == 1.0


def test_files_are_decoded_once(tmp_path, decoded):
    write_folders(tmp_path)
    first, second = (set_up(ImageFolder(tmp_path)) for _ in range(2))
    assert decoded == [12]
    assert torch.equal(first.parts.train.tensors[0], second.parts.train.tensors[0])
    assert (first.mean, first.std, first.classes) == (second.mean, second.std, second.classes)


def test_other_sizes_have_a_cache_of_their_own(tmp_path, decoded):
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
def test_files_that_changed_are_decoded_again(tmp_path, decoded, change):
    write_folders(tmp_path)
    set_up(ImageFolder(tmp_path))
    change(tmp_path / "train" / "cat" / "0.png")
    set_up(ImageFolder(tmp_path))
    assert len(decoded) == 2


def test_many_files_are_decoded_in_order(tmp_path):
    paths = [tmp_path / f"{number:03}.png" for number in range(600)]
    for number, path in enumerate(paths):
        Image.new("L", (1, 1), number % 251).save(path)
    assert decode([str(path) for path in paths]).flatten().tolist() == [number % 251 for number in range(600)]


def test_tiny_imagenet_is_read_in_its_own_layout(tmp_path):
    write_tiny_imagenet(tmp_path)
    source = set_up(TinyImageNet(tmp_path))
    assert source.classes == ["n01443537", "n01629819", "n01641577"]
    assert source.parts.train.tensors[0].shape == (9, 3, 64, 64)
    assert source.parts.train.tensors[1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    images, labels = source.parts.test.tensors
    assert labels.tolist() == [0, 1, 2]
    assert (images.float().mean(dim=(1, 2, 3)) - 100).round().tolist() == [0, 1, 2]


@pytest.mark.parametrize("line", ["val_9.JPEG\tn01443537\t0\t0\t1\t1", "val_0.JPEG\tn99999999\t0", "nonsense"])
def test_a_wrong_line_in_tiny_imagenets_list_is_named(tmp_path, line):
    write_tiny_imagenet(tmp_path)
    annotations = tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text() + line + "\n")
    assert f"{annotations}, line 4" in message_of(TinyImageNet(tmp_path))


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
def test_folders_that_do_not_fit_are_refused(tmp_path, make, message):
    found = message_of(make(tmp_path))
    assert message in found
    assert str(tmp_path) in found or "channels" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"image_size": 0}, "image_size=0"), ({"mean": [0.5]}, "set both"), ({"std": [0.5]}, "set both")],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(MisconfigurationException, match=message):
        ImageFolder(**arguments)
