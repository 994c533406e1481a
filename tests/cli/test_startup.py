"""What a command imports decides how long it takes to start."""

import json
import subprocess
import sys

import pytest
import yaml

from fl_lightning.experiments.parsing import Parsed
from fl_lightning.experiments.plan import plan
from fl_lightning.experiments.suite import load_suite
from tests.experiments.fakes import config, write_run

LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
HEAVY = {*LIGHTNING, "torch", "torchvision", "torchmetrics", "sklearn", "scipy", "jsonargparse"}

SCRIPT = """
import json, sys
from fl_lightning.cli.main import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
json.dump(sorted({name.partition(".")[0] for name in sys.modules}), sys.stderr)
"""


def imported(*arguments: object, before: str = "pass") -> tuple[set[str], str]:
    """Run a command in a new process, after a statement; return the packages it imported and what it printed."""
    command = [sys.executable, "-c", f"import sys; {before}\n{SCRIPT}", *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(process.stderr)), process.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["compare", "--help"], ["report", "--help"]])
def test_the_help_imports_nothing_heavy(arguments):
    packages, out = imported(*arguments)
    assert out
    assert not packages & {*HEAVY, "matplotlib"}


def test_report_imports_neither_lightning_nor_torch(tmp_path):
    write_run(tmp_path / "run", [0.1, 0.5])
    packages, out = imported("report", tmp_path / "run", "--output", tmp_path / "report.html")
    assert out == f"1 run, 1 curve: {tmp_path}/report.html\n"
    assert not packages & HEAVY


def test_a_finished_suite_is_printed_without_lightning_and_torch(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"rows": {"FedAvg": [{"client": {"epochs": 5}}]}}))
    parsed = Parsed(yaml.safe_dump(config(rounds=2)))
    for task in plan(load_suite(suite), tmp_path / "out", parse=lambda lines: [parsed for _ in lines]):
        write_run(task.folder.path, [0.1, 0.5])
        task.write_record(finished=True)
    packages, out = imported("compare", suite, "--output", tmp_path / "out")
    assert "1 of 1 runs have already finished" in out
    assert "| FedAvg | 50.00 %" in out
    assert "Checking" not in out
    assert not packages & HEAVY


def test_an_unfinished_suite_is_checked_in_another_process(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"rows": {"FedAvg": []}}))
    child = "from fl_lightning.experiments import parsing; parsing.PARSE = (sys.executable, '-c', 'print(\"child\")')"
    packages, out = imported("compare", suite, "--output", tmp_path / "out", before=child)
    assert out == "Checking 1 configuration\nchild\n"
    assert not packages & HEAVY


def test_the_help_of_fit_imports_lightning_once_and_no_library_for_data_or_logs(alone):
    packages, out = imported("fit", "--help")
    assert out.startswith("usage: fl-lightning fit")
    assert not packages & {"lightning", "sklearn", "tensorboard"}
