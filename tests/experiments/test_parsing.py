"""Configurations are parsed in a separate process."""

import sys

import pytest
import yaml

from fl_lightning.experiments import parsing
from fl_lightning.experiments.parsing import parse_in_child
from tests.runs import REPOSITORY

DEMO = ["--config", str(REPOSITORY / "configs" / "demo.yaml")]


def test_command_lines_are_completed_or_refused_each_on_its_own(alone, tmp_path, monkeypatch, capfd):
    (tmp_path / "talkative.py").write_text("from fl_lightning.data import IID\nprint('imported')\nclass Mine(IID): ...")
    monkeypatch.chdir(tmp_path)
    good = [*DEMO, "--client.epochs", "7", "--data.partition", "talkative.Mine", "--data.partition.num_clients", "5"]
    first, second = parse_in_child([good, [*DEMO, "--client.epochs", "many"]])
    assert yaml.safe_load(first.config)["client"]["epochs"] == 7
    assert yaml.safe_load(first.config)["data"]["partition"]["class_path"] == "talkative.Mine"
    assert "client.epochs" in first.set_keys
    assert "client.batch_size" not in first.set_keys
    assert first.error is None
    assert second.error == "client.epochs: many is not of type int or list"
    assert capfd.readouterr().out.startswith("Checking 2 configurations\n")


def test_if_the_process_breaks_off_so_does_this_one_with_its_exit_code(monkeypatch):
    monkeypatch.setattr(parsing, "PARSE", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(SystemExit) as exit:
        parse_in_child([[]])
    assert exit.value.code == 3
