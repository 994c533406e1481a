"""The command lines of the server and of the nodes, in one process."""

import logging
import re
import sys
import threading

import pytest

from fl_lightning.core.errors import MisconfigurationError, RoundFailedError
from fl_lightning.flower import cli
from fl_lightning.flower.cli import NodeCLI, ServerCLI, node_arguments, run_server
from fl_lightning.flower.packet import Packet
from tests.flower.loopback import LoopbackPost
from tests.runs import fl_lightning, scalars, succeeded, weights, write_config
from tests.toys import identical


def test_server_and_nodes_with_one_config_end_like_fit(tmp_path, monkeypatch, caplog, alone):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    partition = {"class_path": "ClassesPerClient", "init_args": {"num_clients": 3, "classes": 2}}
    selection = {"class_path": "AllClients"}
    config = str(
        write_config(
            tmp_path / "run.yaml",
            data={"partition": partition, "selection": selection},
            server={"aggregator": "FedBN"},
            trainer={"max_epochs": 2},
        )
    )
    succeeded(fl_lightning("fit", "--config", config, "--trainer.default_root_dir", tmp_path / "sim"))
    post, end, threads = LoopbackPost(), threading.Event(), []
    for number in (0, 1):
        node_config = {"partition-id": number, "num-partitions": 2}
        ready = threading.Event()

        def serve(answer, number=number, ready=ready) -> None:
            post.answers[number] = answer
            ready.set()
            end.wait()

        arguments = (node_arguments(config, node_config), node_config, tmp_path / str(number), serve)
        threads.append(threading.Thread(target=NodeCLI, args=arguments, daemon=True))
        threads[-1].start()
        assert ready.wait(60)
    try:
        with caplog.at_level(logging.INFO):
            ServerCLI(["fit", "--config", config], post)
    finally:
        end.set()
        for thread in threads:
            thread.join(60)
    run, simulation = tmp_path / "runs/run/version_0", tmp_path / "sim/run/version_0"
    assert identical(weights(run), weights(simulation))
    logged, expected = scalars(run), scalars(simulation)
    measured = {tag: logged.pop(tag) for tag in ("wire/up", "wire/down")}
    assert all(len(values) == 2 and min(value for _, value in values) > 0 for values in measured.values())
    assert logged == expected
    lines = [message for message in caplog.messages if message.startswith("Round")]
    number = r"\d+\.\d+"
    assert len(lines) == 2
    assert re.fullmatch(rf"Round 1/2: 3 of 3 clients, {number} s(, val_\w+ {number})+", lines[0])


@pytest.mark.parametrize("error", [MisconfigurationError("no clients"), RoundFailedError("client 5 failed")])
def test_what_fit_reports_in_one_line_has_no_traceback_on_the_server(error, monkeypatch):
    def fail(args, post):
        raise error

    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    monkeypatch.setattr(cli, "ServerCLI", fail)
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    with pytest.raises(type(error), match=str(error)) as raised:
        run_server("run.yaml", "", LoopbackPost())
    assert raised.value.__suppress_context__
    assert sys.tracebacklimit == 0


def test_other_errors_keep_their_traceback_on_the_server(monkeypatch):
    def fail(args, post):
        raise ZeroDivisionError("in the user's code")

    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    monkeypatch.setattr(cli, "ServerCLI", fail)
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    with pytest.raises(ZeroDivisionError):
        run_server("run.yaml", "", LoopbackPost())
    assert sys.tracebacklimit == 1000


def test_a_nodes_trainer_is_its_own_and_need_not_agree_with_the_servers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    config = write_config(tmp_path / "run.yaml", trainer={"max_epochs": 2, "accelerator": "gpu", "devices": 2})
    (tmp_path / "node.yaml").write_text("trainer: {accelerator: cpu, devices: auto, deterministic: true}")
    node_config = {"partition-id": 0, "config": str(tmp_path / "node.yaml")}
    answers = []

    class Watched(NodeCLI):
        def instantiate_trainer(self, **kwargs):
            trainer = super().instantiate_trainer(**kwargs)
            answers.append((type(trainer.accelerator).__name__, trainer.num_devices))
            return trainer

    def serve(answer):
        answers.append(answer(Packet({"wants_counts": False})).note["settings"])

    Watched(node_arguments(str(config), node_config), node_config, tmp_path / "0", serve)
    (accelerator, devices), settings = answers
    assert (accelerator, devices) == ("CPUAccelerator", 1)
    assert not any(key.startswith("trainer") for key in settings)
