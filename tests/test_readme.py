"""What the README shows works as printed."""

import re
from pathlib import Path

from tests.runs import REPOSITORY

README = (REPOSITORY / "README.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["served"].hparams.lr == 0.1
    assert float(names["trainer"].callback_metrics["val/accuracy"]) > 0.5


def test_every_link_and_config_exists():
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    configs = re.findall(r"--config (configs/\S+)", README)
    assert configs
    for path in [*linked, *configs]:
        assert Path(REPOSITORY, path).exists(), path
