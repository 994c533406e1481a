"""Real SuperLinks and SuperNodes, each in a process of its own."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from fl_lightning import FederatedDataModule
from fl_lightning.data import ClassesPerClient
from tests.runs import REPOSITORY, fl_lightning, succeeded, weights, write_config
from tests.toys import Blobs, blobs, identical

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fl_lightning[flower]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]

PARTITION = {"class_path": "ClassesPerClient", "init_args": {"num_clients": 3, "classes": 2}}
ROUNDS = 3


@pytest.fixture
def config(tmp_path, request) -> Path:
    """Write a config, by default with SCAFFOLD, and run it as a simulation."""
    data = {"partition": PARTITION, "selection": {"class_path": "AllClients"}}
    server = {"aggregator": getattr(request, "param", "Scaffold"), "weighting": "uniform"}
    model = {"class_path": "tests.toys.Net", "init_args": {"batch_norm": True, "dropout": 0.2}}
    file = write_config(tmp_path / "run.yaml", model=model, data=data, server=server, trainer={"max_epochs": ROUNDS})
    succeeded(fl_lightning("fit", "--config", file, "--trainer.default_root_dir", tmp_path / "sim"))
    return file


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PL_")},
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "OMP_NUM_THREADS": "1",
    }


def workers() -> set[int]:
    """Return the workers and Flower's processes that run now."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            if (
                "fl_lightning.flower.worker" in line
                or "/flower-super" in line
                or "flower.supernode" in line
                or "/flwr-" in line
            ):
                found.add(int(process.name))
    return found


@pytest.mark.parametrize("config", ["FedBN"], indirect=True)
def test_a_local_federation_ends_like_the_simulation_and_leaves_nothing_running(config, environment, tmp_path):
    before = workers()
    command = [sys.executable, "-m", "fl_lightning.cli", "flower", "--config", str(config), "--local", "2"]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    assert identical(weights(tmp_path / "runs/run/version_0"), weights(tmp_path / "sim/run/version_0"))
    assert workers() <= before


def test_ctrl_c_leaves_nothing_running(config, environment, tmp_path):
    before = workers()
    command = [sys.executable, "-m", "fl_lightning.cli", "flower", "--config", str(config), "--local", "2"]
    process = subprocess.Popen([*command, "--trainer.max_epochs", "1000"], cwd=tmp_path, env=environment)
    try:
        wait_until(lambda: (tmp_path / "runs/run/version_0/checkpoints/last.ckpt").is_file(), process)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 130
    assert workers() <= before


def test_nodes_with_their_own_data_tls_and_keys_end_like_the_simulation(config, environment, tmp_path):
    before = workers()
    certificates(tmp_path)
    whole = FederatedDataModule(Blobs(), partition=ClassesPerClient(3, 2), seed=3)
    whole.setup("fit")
    description = yaml.safe_load(config.read_text())
    description["data"]["source"] = {"class_path": "tests.flower.sources.FileBlobs"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(description))
    succeeded(fl_lightning("flower", "--config", tmp_path / "own.yaml", "--output", tmp_path / "app"))
    ports = free_ports(5)
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "federation"\n[superlink.federation]\naddress = "127.0.0.1:{ports[0]}"\n'
        f'root-certificates = "{tmp_path}/ca.crt"\n'
    )
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> None:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
            stack.callback(end, process)

        def node(number: int, key: str, port: int) -> None:
            file = tmp_path / f"{number}.pt"
            torch.save(blobs()[whole.indices(number)], file)
            start(
                *("flower-supernode", "--superlink", f"localhost:{ports[0]}", "--root-certificates", "ca.crt"),
                *("--auth-supernode-private-key", key, "--port", str(port)),
                *("--node-config", f'partition-id={number} data.source.init_args.file="{file}"'),
            )

        start(
            *("flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile"),
            *("server.key", "--enable-supernode-auth", "--port", str(ports[0])),
            "--disable-runtime-dependency-installation",
        )
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", ports[0])) == 0)
        for number in range(3):
            shell(f'ssh-keygen -q -t ecdsa -b 384 -N "" -f key_{number}', tmp_path, environment)
            shell(f"flwr supernode register key_{number}.pub federation", tmp_path, environment)
            node(number, f"key_{number}", ports[number + 1])
        shell('ssh-keygen -q -t ecdsa -b 384 -N "" -f stranger', tmp_path, environment)
        node(0, "stranger", ports[4])  # is not admitted, so it does not take client 0's number
        output = shell("flwr run app federation --stream", tmp_path, environment, timeout=400)
    assert identical(weights(tmp_path / "runs/own/version_0"), weights(tmp_path / "sim/run/version_0")), output
    wait_until(lambda: workers() <= before)


def certificates(folder: Path) -> None:
    if shutil.which("openssl") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("openssl or ssh-keygen is not installed")
    shell('openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=CA" -keyout ca.key -out ca.crt', folder)
    shell('openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr', folder)
    (folder / "san.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    sign = "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san.txt"
    shell(f"{sign} -out server.pem", folder)


def shell(command: str, folder: Path, environment: dict[str, str] | None = None, timeout: int = 120) -> str:
    finished = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout + finished.stderr


def end(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(condition, process: subprocess.Popen | None = None, seconds: int = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
