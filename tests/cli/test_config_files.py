from pathlib import Path

import pytest

from fl_lightning.cli.config_files import config_files, read_config_file
from fl_lightning.core.errors import MisconfigurationError

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
        (BOMB.encode(), "has more than 100,000 values, counting aliases: a config of a federation is shorter"),
        (b"client: {epochs: 1}\nclient: {epochs: 2}", "is not valid YAML: the key 'client' is there twice in line 2"),
        (b"a: !!python/object/apply:os.mkdir [b]", "could not determine a constructor for the tag"),
    ],
    ids=["encoding", "tab", "zeros", "unclosed nesting", "nesting", "recursion", "bomb", "twice", "Python"],
)
def test_a_file_that_is_no_config_is_refused_before_it_is_parsed(tmp_path, content, problem):
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(MisconfigurationError, match=problem):
        read_config_file(tmp_path / "c.yaml")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(MisconfigurationError, match=r"cannot be read \(Is a directory\): give a readable file"):
        read_config_file(tmp_path)


def test_aliases_and_merges_of_a_usual_config_are_accepted(tmp_path):
    (tmp_path / "c.yaml").write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}")
    assert read_config_file(tmp_path / "c.yaml") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_config_files_are_found_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("")
    args = ["fit", "--config", "a.yaml", "--config=b.yaml", "--config", "{client: {epochs: 1}}", "--config"]
    assert list(config_files(args)) == [Path("a.yaml"), Path("b.yaml")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "c.yaml is empty, not a config: write sections, such as client, data, model, server, trainer"),
        ("text", "c.yaml is a text, not a config"),
        ("server: null", "c.yaml: server is null, but it is a section: give it settings, or leave it out"),
        ("server: 1", "c.yaml: server is a number, but it is a section"),
        ("client: []", "c.yaml: client is a list, but it is a section"),
        ("client: {epoch: {}}", "c.yaml: 'client.epoch' is not a setting: remove it"),
        ("trainer: {unknown: null}", "c.yaml: 'trainer.unknown' is not a setting: remove it"),
        ("sever: {}", "c.yaml: 'sever' is not a section: remove it"),
        ("1: 2", "c.yaml has the key 1: set it to the name of a section or a setting"),
        ("server: {client: {epochs: 2}}", "server.client is set, but client is a section: move it there"),
        ("server: {aggregator: {class_path: FedAvg, init_args: {a: {}}}}", "'server.aggregator.init_args.a' is not an"),
        (
            "trainer: {callbacks: [{class_path: Participation, init_args: {a: {}}}]}",
            "'trainer.callbacks.0.init_args.a' is not an argument: remove it",
        ),
    ],
)
def test_sections_and_settings_that_the_parser_overlooks_are_refused(run, tmp_path, text, problem):
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = run("fit", "--config", "run.yaml", "--config", "c.yaml")
    assert code == 2
    assert problem in err
    assert len(err.strip().splitlines()) == 1


def test_an_empty_section_and_empty_arguments_are_no_mistake(run, tmp_path):
    text = "client: {}\nserver: {aggregator: {class_path: FedAvg, init_args: {}}}"
    (tmp_path / "c.yaml").write_text(text)
    code, out, _ = run("fit", "--config", "run.yaml", "--config", "c.yaml", "--print_config")
    assert code == 0
    assert "FedAvg" in out


@pytest.mark.parametrize("option", ["--config", "--data", "--model", "--client"])
def test_the_content_of_a_foreign_file_is_not_printed(run, option):
    secret = Path("/etc/passwd").read_text().splitlines()[0]
    code, out, err = run("fit", "--config", "run.yaml", option, "/etc/passwd")
    assert code == 2
    assert secret not in out + err
    assert "root" not in err
