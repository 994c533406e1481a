"""What the command prints, returns and leaves behind when a client fails."""

import pytest
import yaml

from tests.runs import write_config

#: clients that break in some round, and a federation in which all of them take part
DATA = {"selection": {"class_path": "AllClients"}, "partition": {"class_path": "IID", "init_args": {"num_clients": 4}}}


@pytest.fixture
def config(tmp_path):
    def write(round: int = 1, clients=(2,), **client):
        broken = {"class_path": "tests.faults.Break", "init_args": {"round": round, "clients": list(clients)}}
        return write_config(
            tmp_path / "run.yaml", data=DATA, client={"callbacks": [broken], **client}, trainer={"max_epochs": 3}
        )

    return write


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if "client" in line and ("failed" in line or "dropped" in line)]


def test_a_failing_client_is_one_line_with_the_file_of_its_traceback_and_the_run_can_be_resumed(run, config, tmp_path):
    code, _, err = run("fit", "--config", config())
    line = (
        "error: client 2 failed in round 2: ValueError: the client broke"
        " (traceback in runs/run/version_0/client_errors.log)"
    )
    assert (code, errors(err), "Traceback" in err) == (1, [line], False)
    text = (tmp_path / "runs/run/version_0/client_errors.log").read_text()
    assert text.startswith("Client 2, round 2\nTraceback (most recent call last):")
    assert "in on_client_start" in text
    (tmp_path / "repaired").touch()
    code, out, _ = run("fit", "--config", config(), "--ckpt_path", "last")
    assert code == 0
    assert "resumed at round 2" in out


def test_a_run_that_fails_in_its_first_round_leaves_only_the_traceback(run, config, tmp_path):
    code, _, err = run("fit", "--config", config(round=0))
    assert code == 1
    assert errors(err)[0].startswith("error: client 2 failed in round 1: ValueError: the client broke (traceback in")
    assert [path.name for path in (tmp_path / "runs/run/version_0").iterdir()] == ["client_errors.log"]
    (tmp_path / "repaired").touch()
    assert run("fit", "--config", config(round=0))[0] == 0


def test_dropped_clients_are_named_and_the_run_goes_on(run, config, caplog):
    assert run("fit", "--config", config(on_error="drop"))[0] == 0
    lines = errors("\n".join(record.message for record in caplog.records))
    reason = "ValueError: the client broke (traceback in runs/run/version_0/client_errors.log)"
    assert lines == [f"client 2 was dropped from round {number}: {reason}" for number in (2, 3)]


def test_too_few_clients_stop_the_run_in_one_line(run, config):
    code, _, err = run("fit", "--config", config(clients=[0, 1, 2], on_error="drop"), "--server.min_clients", 2)
    assert code == 1
    assert "error: round 2 has lost 3 of its 4 clients, but server.min_clients=2: lower server.min_clients" in err


@pytest.mark.parametrize(("given", "saved"), [("2", 2), ("[1, 3]", [1, 3])])
def test_local_epochs_are_a_number_or_two(run, tmp_path, given, saved):
    assert run("fit", "--config", "run.yaml", "--client.epochs", given, "--trainer.max_epochs", 1)[0] == 0
    config = yaml.safe_load((tmp_path / "runs/run/version_0/config.yaml").read_text())
    assert config["client"]["epochs"] == saved


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("client.epochs", "[1, 2, 3]", "epochs=[1, 2, 3]: set client.epochs to a number, or to [smallest, largest]"),
        ("client.epochs", "many", "client.epochs: many is not of type int or list"),
        ("client.dropout", "1.5", "dropout=1.5, but it is the probability that a client drops out"),
        ("client.timeout", "-1", "timeout=-1.0, but it is a time in seconds: set client.timeout above 0"),
        ("client.on_error", "ignore", "client.on_error: ignore is not one of 'raise', 'drop'"),
        ("server.min_clients", "0", "min_clients=0: set server.min_clients to 1 or more"),
        ("server.min_clients", "6", "min_clients=6, but a round has 5 clients: set server.min_clients to 5 or less"),
    ],
)
def test_a_wrong_setting_is_explained_in_one_line(run, key, value, message):
    code, _, err = run("fit", "--config", "run.yaml", f"--{key}", value)
    assert (code, message in err) == (2, True), err
