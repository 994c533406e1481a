import runpy
import sys
from types import SimpleNamespace

import pytest

import fl_lightning
from fl_lightning.core.errors import MisconfigurationError


def test_help_lists_all_commands(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("fit", "validate", "test", "predict", "partition", "compare", "report"):
        assert f"\n  {command} " in out
    assert run() == (0, out, "")


def test_the_version_is_printed(run):
    assert run("--version") == (0, f"fl-lightning {fl_lightning.__version__}\n", "")


@pytest.mark.parametrize("command", ["compare", "report"])
def test_other_commands_get_their_arguments_and_report_a_mistake_in_one_line(run, monkeypatch, command):
    seen = []
    monkeypatch.setitem(sys.modules, f"fl_lightning.cli.{command}", SimpleNamespace(main=seen.append))
    assert run(command, "suite.yaml", "--jobs", 2)[0] == 0
    assert seen == [["suite.yaml", "--jobs", "2"]]

    def refuse(_):
        raise MisconfigurationError("suite.yaml:\n  there is no such file")

    monkeypatch.setitem(sys.modules, f"fl_lightning.cli.{command}", SimpleNamespace(main=refuse))
    assert run(command, "suite.yaml") == (2, "", "error: suite.yaml: there is no such file\n")


def test_the_package_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "report", "nowhere"])
    with pytest.raises(SystemExit):
        runpy.run_module("fl_lightning.cli", run_name="__main__")
    assert capsys.readouterr().err == "error: nowhere: there is no such folder\n"
