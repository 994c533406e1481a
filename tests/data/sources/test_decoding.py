import numpy as np
import pytest
from PIL import Image

from fl_lightning.data.sources._decoding import decode
from tests.data.files import bytes_of, write_image


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".pgm"])
def test_images_are_grey_if_all_of_them_are(tmp_path, suffix):
    pixels = [bytes_of((5, 4), seed) for seed in range(3)]
    paths = [tmp_path / f"{number}{suffix}" for number in range(3)]
    for path, image in zip(paths, pixels, strict=True):
        write_image(path, image)
    images = decode([str(path) for path in paths])
    assert np.array_equal(images.numpy(), np.stack(pixels)[:, None])


def test_a_grey_image_among_coloured_ones_becomes_rgb(tmp_path):
    grey, coloured = bytes_of((5, 4)), bytes_of((5, 4, 3), 1)
    write_image(tmp_path / "a.png", grey)
    write_image(tmp_path / "b.png", coloured)
    images = decode([str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    assert np.array_equal(images[0].numpy(), np.stack([grey] * 3))
    assert np.array_equal(images[1].numpy(), coloured.transpose(2, 0, 1))


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", ".png"), ("P", ".png"), ("CMYK", ".jpg"), ("LA", ".png")])
def test_every_colour_mode_becomes_rgb_or_grey(tmp_path, mode, suffix):
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode).save(path)
    image = decode([str(path)])
    assert image.shape == (1, 1 if mode == "LA" else 3, 4, 4)
    assert image.min() >= 254


def test_sixteen_bit_images_keep_their_brightness(tmp_path):
    values = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert decode([str(tmp_path / "deep.png")]).flatten().tolist() == [0, 1, 128, 255]


def test_images_are_resized_by_their_shorter_side_and_cropped_to_the_middle(tmp_path):
    pixels = np.zeros((8, 16, 3), dtype=np.uint8)
    pixels[:, 4:12] = 200
    write_image(tmp_path / "wide.png", pixels)
    write_image(tmp_path / "square.png", np.full((4, 4, 3), 200, dtype=np.uint8))
    images = decode([str(tmp_path / "wide.png"), str(tmp_path / "square.png")], image_size=8)
    assert images.shape == (2, 3, 8, 8)
    assert (images == 200).all()


def test_files_of_several_tasks_are_decoded_in_order(tmp_path):
    paths = [tmp_path / f"{number:03}.png" for number in range(600)]
    for number, path in enumerate(paths):
        Image.new("L", (1, 1), number % 251).save(path)
    assert decode([str(path) for path in paths]).flatten().tolist() == [number % 251 for number in range(600)]
