import gzip

import numpy as np
import pytest

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import MNIST
from fl_lightning.data.sources._idx import read_idx
from tests.data.files import bytes_of, first_half, message_of, write_idx, write_mnist


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5)])
def test_plain_and_compressed_idx_files_are_read(tmp_path, suffix, shape):
    array = bytes_of(shape)
    write_idx(tmp_path / f"file{suffix}", array)
    assert np.array_equal(read_idx(tmp_path / f"file{suffix}").numpy(), array)


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("train-images-idx3-ubyte", first_half, "bytes of data instead of 31360"),
        ("t10k-labels-idx1-ubyte", lambda content: content + b"more", "bytes of data instead of 20"),
        ("t10k-labels-idx1-ubyte", lambda content: content[:6], "ends within its header"),
        ("train-labels-idx1-ubyte", lambda content: b"<html>" + content, "does not have the header of an idx file"),
        ("train-labels-idx1-ubyte", lambda content: b"", "does not have the header of an idx file"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path, name, damage, why):
    write_mnist(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / name
    path.write_bytes(damage(path.read_bytes()))
    message = message_of(MNIST(tmp_path))
    assert message.startswith(f"{path} is broken")
    assert why in message


@pytest.mark.parametrize("damage", [first_half, lambda content: content[:-20] + b"x" * 20, lambda content: b"no gzip"])
def test_a_broken_compressed_file_is_named(tmp_path, damage):
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(bytes_of((5000,)).tobytes())))
    with pytest.raises(MisconfigurationError, match=r"file\.gz is broken"):
        read_idx(path)
