"""The examples in the README and on the first page of the documentation work as printed."""

import re
import shlex

import pytest
import yaml

from tests.runs import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


SHORT = ["--trainer.max_epochs", 1, "--client.limit_train_batches", 1, "--trainer.enable_progress_bar", "false"]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


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


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_commands_run_in_the_order_in_which_they_stand(page, run, tmp_path):
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    commands = [shlex.split(line, comments=True) for line in command_lines((REPOSITORY / page).read_text())]
    assert commands
    for name, *arguments in commands:
        short = SHORT if arguments[0] == "fit" and "--help" not in arguments else []
        assert name == "fl-lightning"
        code, _, err = run(*arguments, *short)
        assert code == 0, f"{shlex.join(arguments)}: {err}"


def command_lines(text: str) -> list[str]:
    """Return the commands of a page, without those that set up or test the repository or start a server."""
    lines = [line for block in blocks("bash", text) for line in block.replace("\\\n", "").splitlines() if line]
    return [line for line in lines if not line.startswith(("make ", "tensorboard "))]
