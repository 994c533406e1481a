from pathlib import Path

import pytest

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.folders import check_new_folder


@pytest.mark.parametrize("folder", ["/dev/null/below", "/proc/nowhere", "nul\0", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused_with_the_setting(folder):
    with pytest.raises(MisconfigurationError, match=r"cannot be used \(.+\): set here\.dir to one that can be written"):
        check_new_folder(Path(folder), "here.dir")


def test_the_check_leaves_no_folder_behind(tmp_path):
    check_new_folder(tmp_path / "a" / "b", "here.dir")
    assert list(tmp_path.iterdir()) == []


def test_the_check_leaves_an_existing_folder_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("")
    check_new_folder(tmp_path / "a", "here.dir")
    assert (tmp_path / "a" / "file").exists()
