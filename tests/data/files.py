"""Writes tiny files in the formats of the real data sets, and reads them."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from fl_lightning.core.errors import MisconfigurationError


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, train: int = 40, test: int = 20, suffix: str = "") -> dict[str, np.ndarray]:
    """Write the four files, and return their arrays by name."""
    arrays = {
        "train-images-idx3-ubyte": bytes_of((train, 28, 28), 1),
        "train-labels-idx1-ubyte": np.arange(train, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": bytes_of((test, 28, 28), 2),
        "t10k-labels-idx1-ubyte": np.arange(test, dtype=np.uint8) % 10,
    }
    for name, array in arrays.items():
        write_idx(folder / f"{name}{suffix}", array)
    return arrays


def write_cifar10(root: Path, monkeypatch, per_batch: int = 4) -> dict[str, np.ndarray]:
    """Write the six batches and their description, patch torchvision's checksums, and return the images by file."""
    published = torchvision.datasets.CIFAR10
    folder = root / published.base_folder
    folder.mkdir(parents=True)
    images, checksums = {}, {}
    for seed, (name, _) in enumerate([*published.train_list, *published.test_list]):
        images[name] = bytes_of((per_batch, 3, 32, 32), seed)
        labels = [(seed + number) % 10 for number in range(per_batch)]
        content = pickle.dumps({"data": images[name].reshape(per_batch, -1), "labels": labels}, protocol=2)
        (folder / name).write_bytes(content)
        checksums[name] = hashlib.md5(content).hexdigest()
    meta = pickle.dumps({published.meta["key"]: list("abcdefghij")}, protocol=2)
    (folder / published.meta["filename"]).write_bytes(meta)
    for attribute in ("train_list", "test_list"):
        mine = [[name, checksums[name]] for name, _ in getattr(published, attribute)]
        monkeypatch.setattr(published, attribute, mine)
    monkeypatch.setattr(published, "meta", {**published.meta, "md5": hashlib.md5(meta).hexdigest()})
    return images


def write_image(path: Path, pixels: np.ndarray) -> None:
    """Write pixels (height, width) as a grey image, or (height, width, 3) as a colour image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_folders(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), train: int = 4, test: int = 2, suffix: str = ".png"
) -> None:
    for part, count in (("train", train), ("test", test)):
        for label, name in enumerate(classes):
            for number in range(count):
                write_image(root / part / name / f"{number}{suffix}", bytes_of((8, 6, 3), 100 * label + number))


def write_tiny_imagenet(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(("n01443537", "n01629819", "n01641577")):
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
        for number in range(3):
            colours = bytes_of((64, 64, 3) if number else (64, 64), 10 * label + number)
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", colours)
        # the files are not in the order of the classes
        name = f"val_{2 - label}.JPEG"
        write_image(folder / "val" / "images" / name, np.full((64, 64, 3), 100 + label, dtype=np.uint8))
        lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def write_tweets(root: Path, rows: list[tuple[int, str, str]]) -> Path:
    """Write rows of polarity, user and text."""
    path = root / "sentiment140" / "training.1600000.processed.noemoticon.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f'"{polarity}","{number}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\n'
        for number, (polarity, user, text) in enumerate(rows)
    ]
    path.write_text("".join(lines), encoding="latin-1")
    return path


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def set_up(source):
    source.prepare_data()
    source.setup("fit")
    return source


def message_of(source) -> str:
    """Return the one-line error that setting up the source raises."""
    with pytest.raises(MisconfigurationError) as caught:
        set_up(source)
    message = str(caught.value)
    assert "\n" not in message
    return message
