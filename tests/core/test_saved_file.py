import errno
import os
import pickle
import random
import zipfile

import pytest
import torch

from fl_lightning.core import saved_file
from fl_lightning.core.errors import StorageError
from fl_lightning.core.saved_file import DamagedFileError, read_saved_file, write_saved_file

CONTENT = {"weights": torch.arange(300.0), "more": {"counts": torch.arange(7), "name": "run", "rounds": 3}}


def as_bytes(content):
    """Return what was loaded, tensors included, as bytes that can be compared."""
    if isinstance(content, dict):
        return [(name, as_bytes(value)) for name, value in content.items()]
    return (str(content.dtype), content.shape, content.numpy().tobytes()) if torch.is_tensor(content) else content


@pytest.fixture
def path(tmp_path):
    write_saved_file(CONTENT, tmp_path / "folder" / "file.ckpt")
    return tmp_path / "folder" / "file.ckpt"


def test_a_file_is_read_as_it_was_written_and_nothing_else_is_left(path):
    assert as_bytes(read_saved_file(path)) == as_bytes(CONTENT)
    assert list(path.parent.iterdir()) == [path]


def test_no_flipped_bit_changes_what_is_read_without_being_noticed(path):
    """Bits of headers that nobody reads, such as the time of an entry, may flip; then the content is the same."""
    good = path.read_bytes()
    generator = random.Random(0)
    bits = [generator.randrange(8 * len(good)) for _ in range(200)]
    bits += range(8 * (len(good) - 150), 8 * len(good), 7)  # the end of the table of contents, and what locates it
    refused = 0
    for bit in bits:
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            content = read_saved_file(path)
        except DamagedFileError:
            refused += 1
        else:
            assert as_bytes(content) == as_bytes(CONTENT), f"bit {bit}"
    assert refused > len(bits) / 4


def test_every_flipped_bit_of_a_tensor_is_refused(path):
    good = path.read_bytes()
    begin = good.index(CONTENT["weights"].numpy().tobytes())
    for byte in range(begin, begin + CONTENT["weights"].nbytes, 17):
        flipped = bytearray(good)
        flipped[byte] ^= 1 << byte % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedFileError, match="the checksum of data/0 is wrong"):
            read_saved_file(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: b"", "is empty"),
        (lambda content: content[: len(content) // 2], "is not a checkpoint, or it is truncated"),
        (lambda content: bytes(len(content)), "is not a checkpoint, or it is truncated"),
        (lambda content: b"seed_everything: 3", "is not a checkpoint, or it is truncated"),
        (lambda content: pickle.dumps({"state_dict": {}}), "is not a checkpoint, or it is truncated"),
        (lambda content: content[:200] + bytes(400) + content[600:], "is damaged"),
    ],
    ids=["empty", "truncated", "zeroed", "text", "pickle", "partly zeroed"],
)
def test_a_broken_file_is_refused(path, change, problem):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedFileError, match=problem):
        read_saved_file(path)


def test_another_zip_archive_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_saved_file(path)


class Malicious:
    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


def test_nothing_in_a_file_is_executed(path):
    proof = path.parent / "executed"
    torch.save({"state_dict": Malicious(proof)}, path)
    with pytest.raises(DamagedFileError, match=r"holds objects \(posix\.mkdir\) that could run code"):
        read_saved_file(path)
    assert not proof.exists()
    torch.load(path, weights_only=False)
    assert proof.exists()  # so the file is malicious indeed


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_if_the_disk_fails_the_previous_file_is_kept(path, monkeypatch, number):
    before = path.read_bytes()

    def fail(content, file):
        file.write(b"a part of it")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(saved_file.torch, "save", fail)
    with pytest.raises(StorageError, match=rf"file\.ckpt could not be written: {os.strerror(number)}$"):
        write_saved_file(CONTENT, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_was_not_written_as_it_should_does_not_replace_the_previous_one(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(saved_file.torch, "save", lambda content, file: file.write(before[:-300]))
    with pytest.raises(StorageError, match="what was written is not a checkpoint, or it is truncated"):
        write_saved_file(CONTENT, path)
    assert path.read_bytes() == before


def test_an_object_that_cannot_be_saved_keeps_its_own_error(path):
    with pytest.raises((AttributeError, pickle.PicklingError)):
        write_saved_file({"function": lambda: None}, path)
    assert as_bytes(read_saved_file(path)) == as_bytes(CONTENT)
