"""The command line with a model that is made with ``lightning``."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.other_lightning.process import run_program
from tests.runs import REPOSITORY, scalars, weights, write_config
from tests.toys import identical

TOYS = "tests.other_lightning.toys"
IMPORTED = "imported: lightning\n"


@pytest.fixture
def config(tmp_path):
    return write_config(
        tmp_path / "run.yaml",
        model={"class_path": f"{TOYS}.Net", "init_args": {"lr": 0.1}},
        data={"source": {"class_path": f"{TOYS}.Blobs"}},
        trainer={"max_epochs": 3, "callbacks": [{"class_path": f"{TOYS}.TellsImports"}]},
    )


def run_command(*arguments, folder):
    """Run ``fl-lightning`` in a new interpreter, which has not imported any Lightning."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PL_", "FL_"))}
    command = [sys.executable, "-m", "fl_lightning.cli", *map(str, arguments)]
    paths = os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), str(REPOSITORY)])
    environment |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process.stdout


def test_a_run_uses_the_lightning_of_its_model_and_imports_no_other(config, tmp_path):
    assert IMPORTED in run_command("fit", "--config", config, "--trainer.max_epochs", 1, folder=tmp_path)


@pytest.mark.slow
def test_a_comparison_uses_the_lightning_of_its_models(config, tmp_path):
    suite = {"base": [config.name], "rows": {"FedAvg": []}, "metric": "val_accuracy"}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    run_command("compare", "suite.yaml", "--output", "out", folder=tmp_path)
    assert IMPORTED in (tmp_path / "out/FedAvg/seed_1/fit.log").read_text()


@pytest.mark.slow
def test_a_run_that_is_resumed_from_its_last_checkpoint_ends_like_an_undisturbed_one(config, tmp_path):
    for extra in (
        ["--trainer.default_root_dir", "whole"],
        ["--trainer.max_epochs", "1"],
        ["--ckpt_path", "last"],
    ):
        part = run_program("command", "fit", "--config", str(config), *extra, folder=tmp_path)
        assert part.value == 0, part.printed
        assert IMPORTED in part.printed
    resumed, undisturbed = (tmp_path / name / "run" / "version_0" for name in ("runs", "whole"))
    assert identical(weights(resumed), weights(undisturbed))
    assert scalars(resumed) == scalars(undisturbed)


@pytest.mark.slow
def test_a_class_of_the_other_copy_is_refused_in_one_line(config, tmp_path):
    options = ["--data.source", "tests.toys.Blobs"]
    refused = run_program("command", "fit", "--config", str(config), *options, folder=tmp_path)
    assert refused.value == 2
    assert refused.printed == (
        "error: data.source: tests.toys.Blobs is made with pytorch_lightning, but this run uses lightning.pytorch, a"
        " separate copy of the same classes: let tests.toys import lightning.pytorch instead of pytorch_lightning\n"
    )
