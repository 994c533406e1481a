"""The examples in the README work as printed."""

import re

import yaml

from tests.runs import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["served"].hparams.lr == 0.1
    assert float(names["trainer"].callback_metrics["val/accuracy"]) > 0.5


def test_the_printed_overlay_equals_its_file():
    (overlay,) = blocks("yaml")
    assert yaml.safe_load(overlay) == yaml.safe_load((REPOSITORY / "configs/algorithms/fednnnn.yaml").read_text())


def test_the_command_runs(run):
    (command,) = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("fl-lightning")]
    arguments = command.replace("configs/", f"{REPOSITORY}/configs/").split()[1:]
    short = ["--trainer.max_epochs", 1, "--client.epochs", 1, "--trainer.enable_progress_bar", "false"]
    code, out, err = run(*arguments, *short)
    assert code == 0, err
    assert "FedNNNN" in out
