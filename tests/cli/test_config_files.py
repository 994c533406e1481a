from pathlib import Path

import pytest

from fl_lightning.cli.config_files import config_files


def test_config_files_are_found_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("")
    args = ["fit", "--config", "a.yaml", "--config=b.yaml", "--config", "{client: {epochs: 1}}", "--config"]
    assert list(config_files(args)) == [Path("a.yaml"), Path("b.yaml")]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "c.yaml is empty, not a config: write sections, such as client, data, federation, model, server, trainer"),
        ("text", "c.yaml is a string, not a config"),
        ("server: null", "c.yaml: server is null, but it is a section: give it settings, or leave it out"),
        ("server: 1", "c.yaml: server is a number, but it is a section"),
        ("client: []", "c.yaml: client is a list, but it is a section"),
        ("client: {epoch: {}}", "c.yaml: 'client.epoch' is not a setting: remove it"),
        ("trainer: {unknown: null}", "c.yaml: 'trainer.unknown' is not a setting: remove it"),
        ("sever: {}", "c.yaml: 'sever' is not a section: remove it"),
        ("1: 2", "c.yaml: '1' is not a valid name: use the name of a section or a setting"),
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


@pytest.mark.parametrize("option", ["--config", "--data", "--model", "--server.optimizer", "--data.source"])
@pytest.mark.parametrize("text", ["root:$6$sesame:20228::\n", "password: sesame\n"])
def test_neither_keys_that_are_no_names_nor_values_of_a_foreign_file_are_printed(run, tmp_path, option, text):
    (tmp_path / "secret").write_text(text)
    code, out, err = run("fit", "--config", "run.yaml", option, "secret")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "sesame" not in out + err
