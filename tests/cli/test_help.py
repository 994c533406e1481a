import re

import pytest

SECTIONS = ["model", "data", "client", "server", "federation", "trainer"]


@pytest.fixture
def fit_help(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("fit", "--help")
    assert code == 0
    return out


def test_the_sections_stand_in_the_order_of_a_config(fit_help):
    options = re.findall(r"^  --(\w+)", fit_help, re.MULTILINE)
    assert list(dict.fromkeys(name for name in options if name in SECTIONS)) == SECTIONS
    assert re.findall(r"^(\w+) \(", fit_help, re.MULTILINE) == SECTIONS


def test_the_help_is_short_and_has_every_option_with_an_explanation(fit_help, run):
    assert len(fit_help.splitlines()) < 335
    assert max(map(len, fit_help.splitlines()[:-1])) <= 80
    explained = set(re.findall(r"^  (?:-\w, )?--([\w.]+)[^\n]*(?:\n {24}|  )\S", fit_help, re.MULTILINE))
    _, printed, _ = run("fit", "--config", "run.yaml", "--print_config")
    sections = re.split(r"^(\w+):", printed, flags=re.MULTILINE)
    for section, content in zip(sections[1::2], sections[2::2], strict=True):
        if section in ("client", "server", "data", "trainer"):
            keys = re.findall(r"^  (\w+):", content, re.MULTILINE)
            assert {f"{section}.{key}" for key in keys} <= explained


def test_an_option_names_the_classes_of_this_package_that_it_accepts(fit_help):
    words = " ".join(fit_help.split())
    assert (
        "how the clients' updates become the next global model; by default FedAvg (such as CoordinateMedian, DPFedAvg,"
        in words
    )
    assert "--server.weighting {samples,uniform}" in words
    assert "TracedOps" not in words


def test_the_help_of_a_class_is_complete(run):
    code, out, _ = run("fit", "--data.partition.help", "ClassesPerClient")
    assert code == 0
    for text in ("--data.partition.classes", "type: int", "``power_law``"):
        assert text in out


def test_commands_have_their_own_options(run):
    assert "default: predictions.pt" in run("predict", "--help")[1]
    assert "picture of the partition" in run("partition", "--help")[1]
    assert "--output" not in run("validate", "--help")[1]


def test_a_mistyped_command_is_reported_with_the_commands_that_exist(run):
    commands = "fit, validate, test, predict, partition, compare, report, flower"
    assert run("fitt") == (2, "", f"error: fitt is not a command: use {commands}\n")
