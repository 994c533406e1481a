"""``fl-lightning flower``: the app that it writes, and mistakes."""

import ast

import pytest
import tomllib
import yaml

from fl_lightning import __version__
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower.cli import common_settings, node_arguments


def test_the_app_has_the_complete_config_and_two_lines_of_python(run, tmp_path):
    code, out, err = run("flower", "--config", "run.yaml", "--client.epochs", 3, "--output", "app")
    assert (code, err) == (0, "")
    assert "app/README.md" in out
    config = yaml.safe_load((tmp_path / "app/federation/run.yaml").read_text())
    assert config["client"]["epochs"] == 3
    assert config["federation"] == {"num_clients": None, "wait": 300.0, "timeout": 600.0, "client_memory": "node"}
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    assert project["project"]["dependencies"] == [f"fl_lightning[flower]=={__version__}"]
    for side, component in project["tool"]["flwr"]["app"]["components"].items():
        module, name = component.split(":")
        lines = ast.parse((tmp_path / "app" / f"{module.replace('.', '/')}.py").read_text()).body
        assert len(lines) == 2
        assert lines[1].targets[0].id == name
        assert lines[0].names[0].name == side.replace("serverapp", "server_app").replace("clientapp", "client_app")


def test_the_readme_names_the_run_and_leaves_no_placeholder(run, tmp_path):
    run("flower", "--config", "run.yaml", "--output", "app")
    for name in ("README.md", "nginx.conf", "node.yaml"):
        assert "{{" not in (tmp_path / "app" / name).read_text()
    readme = (tmp_path / "app/README.md").read_text()
    assert "federation of 10 clients" in readme
    assert "flwr run app federation" in readme
    assert "Control API" in readme
    assert "[code: 2004] Failed to activate SuperNode." in readme
    assert ">> superlink.log" in readme
    assert f"fl_lightning-{__version__}-py3-none-any.whl[flower]" in readme


def test_the_apps_config_is_a_config_of_fit(run, tmp_path):
    run("flower", "--config", "run.yaml", "--output", "app")
    code, _, err = run("fit", "--config", "app/federation/run.yaml", "--trainer.max_epochs", 1)
    assert code == 0, err


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "set --output to a folder for the app, or --local to a number of nodes"),
        (("--output", "app", "--local", 2), "set --output to a folder for the app, or --local"),
        (("--local", 0), "local=0: set --local to 1 or more nodes"),
        (("--output", "missing/app"), "the folder missing does not exist"),
        (("--output", "."), "exists: set --output to a folder that does not"),
        (("--output", "app", "--client.epochz", 3), "client.epochz"),
        (("--output", "app", "--federation.timeout", 0), "timeout=0"),
        (("--output", "app", "--federation.client_memory", "cloud"), "client_memory"),
    ],
)
def test_a_mistake_is_one_line(run, arguments, message):
    code, _, err = run("flower", "--config", "run.yaml", *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_more_nodes_than_clients_are_refused(run, monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.command.check_installed", lambda: None)
    code, _, err = run("flower", "--config", "run.yaml", "--local", 11)
    assert (code, err) == (2, "error: local=11, but there are 10 clients: set --local to 10 or fewer\n")


def test_a_missing_flower_is_explained(run, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    code, _, err = run("flower", "--config", "run.yaml", "--local", 2)
    assert code == 2
    assert "flower-superlink is missing, so Flower is not installed: pip install 'fl_lightning[flower]'" in err


def test_a_nodes_settings_follow_its_overlay():
    config = {"partition-id": 2, "config": "node.yaml", "data.source.init_args.root": "/data", "folder": "here"}
    assert node_arguments("run.yaml", config) == [
        *("fit", "--config", "run.yaml", "--config", "node.yaml", "--data.source.init_args.root=/data")
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "partition-id=None in --node-config: set it to the client's number"),
        ({"partition-id": "2"}, "partition-id=2"),
        ({"partition-id": -1}, "partition-id=-1"),
        ({"partition-id": 3, "num-partitions": 3}, "partition-id=3 and num-partitions=3"),
    ],
)
def test_a_node_without_a_proper_number_is_refused(config, message):
    with pytest.raises(MisconfigurationError, match=message):
        node_arguments("run.yaml", config)


def test_data_and_trainer_are_a_nodes_own_and_the_rest_is_common():
    config = {
        "seed_everything": 1,
        "model": {"class_path": "Net", "init_args": {"hidden": 8}},
        "data": {"source": "here"},
        "client": {"epochs": 2},
        "server": {"weighting": "uniform", "client_folder": "memory"},
        "trainer": {"accelerator": "gpu"},
    }
    keys = set(common_settings(config))
    assert any("hidden" in key for key in keys)
    assert {"seed_everything", "client.epochs", "server.weighting"} <= keys
    assert not any(key.startswith(("data", "trainer")) or key == "server.client_folder" for key in keys)
