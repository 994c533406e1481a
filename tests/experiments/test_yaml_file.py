import pytest

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.suite import load_suite
from fl_lightning.experiments.yaml_file import read_yaml_file

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"client: {epochs: 1} # \xff", "is not a text file in UTF-8: save it in UTF-8"),
        (b"client:\n\tepochs: 1", r"is not valid YAML: found character '\\t' .* in line 2"),
        (b"\0\0", "is not valid YAML: give a text file of keys and values"),
        (b"[" * 5000, "is nested more than 50 deep, or contains itself: remove the nesting"),
        (b"a: " + b"[" * 60 + b"]" * 60, "is nested more than 50 deep"),
        (b"a: &a [*a]", "is nested more than 50 deep, or contains itself"),
        (BOMB.encode(), "has more than 100,000 values, counting aliases: write a shorter file"),
        (b"client: {epochs: 1}\nclient: {epochs: 2}", "is not valid YAML: the key 'client' occurs twice in line 2"),
        (b"a: !!python/object/apply:os.mkdir [b]", "could not determine a constructor for the tag"),
    ],
    ids=["encoding", "tab", "zeros", "unclosed nesting", "nesting", "recursion", "bomb", "twice", "Python"],
)
def test_a_file_that_is_no_config_is_refused_before_it_is_parsed(tmp_path, content, problem):
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(MisconfigurationError, match=problem):
        read_yaml_file(tmp_path / "c.yaml")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(MisconfigurationError, match=r"cannot be read \(Is a directory\): give a readable file"):
        read_yaml_file(tmp_path)


def test_aliases_and_merges_of_a_usual_config_are_accepted(tmp_path):
    (tmp_path / "c.yaml").write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}")
    assert read_yaml_file(tmp_path / "c.yaml") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_a_suite_is_read_with_the_same_care(tmp_path):
    (tmp_path / "suite.yaml").write_text(BOMB)
    with pytest.raises(MisconfigurationError, match="has more than 100,000 values"):
        load_suite(tmp_path / "suite.yaml")
