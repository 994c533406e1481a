import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fl_lightning.data.sources._cache import cached, fingerprint_of

CONTENT = {"a": torch.arange(5), "b": torch.rand(3, 4), "c": torch.zeros(0, dtype=torch.uint8)}


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return CONTENT


@pytest.fixture
def make():
    return Maker()


@pytest.fixture(autouse=True)
def user_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "fl_lightning"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def same(tensors) -> bool:
    return tensors.keys() == CONTENT.keys() and all(torch.equal(tensors[name], CONTENT[name]) for name in CONTENT)


def test_the_cache_is_read_the_next_time(folder, make):
    assert same(cached(folder, "x", "1", make))
    assert same(cached(folder, "x", "1", make))
    assert make.calls == 1
    assert [path.name for path in folder.iterdir()] == ["fl_lightning-x.cache"]


def test_a_different_fingerprint_replaces_the_cache(folder, make):
    cached(folder, "x", "1", make)
    cached(folder, "x", "2", make)
    assert make.calls == 2
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"nonsense",
        lambda content: content.replace(CONTENT["b"].numpy().tobytes(), bytes(48)),
    ],
    ids=["cut", "empty", "nonsense", "other numbers"],
)
def test_a_broken_cache_is_made_again(folder, make, damage):
    cached(folder, "x", "1", make)
    place = folder / "fl_lightning-x.cache"
    content = place.read_bytes()
    place.write_bytes(damage(content))
    assert place.read_bytes() != content
    assert same(cached(folder, "x", "1", make))
    assert same(cached(folder, "x", "1", make))
    assert make.calls == 2


def test_the_users_cache_folder_is_used_if_the_data_folder_is_not_writable(folder, make, user_folder):
    (folder / "fl_lightning-x.cache").mkdir()  # no file can replace a folder
    cached(folder, "x", "1", make)
    assert same(cached(folder, "x", "1", make))
    assert make.calls == 1
    assert len(list(user_folder.iterdir())) == 1
    assert [path.name for path in folder.iterdir()] == ["fl_lightning-x.cache"]  # no half-written file is left behind


def test_without_a_writable_folder_data_is_loaded_with_a_warning(folder, make, user_folder):
    (folder / "fl_lightning-x.cache").mkdir()
    user_folder.parent.mkdir()
    user_folder.write_text("no folder")
    with pytest.warns(UserWarning, match="neither .* is writable"):
        assert same(cached(folder, "x", "1", make))


def test_several_threads_can_write_the_cache_at_once(folder, make):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: cached(folder, "x", "1", make), range(16)))
    assert all(map(same, results))
    assert [path.name for path in folder.iterdir()] == ["fl_lightning-x.cache"]


def test_a_fingerprint_depends_on_name_size_time_and_version_but_not_on_the_folder(folder, tmp_path):
    def fingerprint(version: str = "1") -> str:
        return fingerprint_of(version, [str(path) for path in sorted(folder.iterdir())], folder)

    (folder / "a").write_text("one")
    os.utime(folder / "a", ns=(5, 5))
    first = fingerprint()
    seen = {first, fingerprint("2")}
    (folder / "a").rename(folder / "b")
    seen.add(fingerprint())
    (folder / "b").rename(folder / "a")
    assert fingerprint() == first
    os.utime(folder / "a", ns=(6, 6))
    seen.add(fingerprint())
    (folder / "a").write_text("four")
    os.utime(folder / "a", ns=(5, 5))
    seen.add(fingerprint())
    assert len(seen) == 5
    (folder / "a").write_text("one")
    os.utime(folder / "a", ns=(5, 5))
    moved = folder.rename(tmp_path / "moved")
    assert fingerprint_of("1", [str(moved / "a")], moved) == first
