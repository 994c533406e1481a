"""The two apps that Flower runs: one on the server, and one per message on a node. They import flwr first."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_lightning.flower.grid import GridPost, from_records, to_records
from fl_lightning.flower.node_folder import WorkerFolder
from fl_lightning.flower.packet import Packet, read_packet, write_packet

#: how long a worker may take to import Lightning and load its data, in seconds
_START_TIMEOUT = 600.0
#: how long the server may take to end by itself when Flower has ended, in seconds
_GRACE = 5.0


def server_app(file: str, config: str) -> ServerApp:
    """Return the server's app.

    Args:
        file: the ``__file__`` of the module that calls this.
        config: name of the config in the same folder.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        from fl_lightning.flower.cli import run_server

        end_with_parent()
        path = Path(file).resolve().parent / config
        sys.path.insert(0, str(path.parent.parent))
        run_server(str(path), str(context.run_config.get("options", "")), GridPost(grid))

    app.main()(main)
    return app


def end_with_parent() -> None:
    """End this process soon after the one that started it, which is Flower's.

    Flower interrupts the server when its SuperLink has ended. If the server is sending a model at that moment, it would
    not notice: it waits for threads that try again for ever, and keeps the run's folder locked.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def client_app(file: str, config: str) -> ClientApp:
    """Return a node's app, which passes messages on to its worker. The arguments are the same as for the server."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        path = Path(file).resolve().parent / config
        packets = from_records(message.content)
        for packet in packets:
            if "refused" in packet.note:
                print(f"The server refuses this node: {packet.note['refused']}", file=sys.stderr, flush=True)
                return Message(to_records([Packet({"layouts": {}})]), reply_to=message)
        replies = [ask_worker(packet, path, dict(context.node_config)) for packet in packets]
        return Message(to_records(replies), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    app.evaluate()(answer)
    return app


def ask_worker(packet: Packet, config: Path, node_config: dict[str, Any]) -> Packet:
    """Return the worker's answer. A worker is started if there is none, or if it was started for another task."""
    folder = WorkerFolder.of_supernode(os.getppid())
    task = {
        "config": str(config),
        "text": config.read_text(),
        "app": str(config.parent.parent),
        "node_config": node_config,
        "node_folder": str(
            Path(node_config.get("folder", f"fl_lightning_node_{node_config.get('partition-id')}")).resolve()
        ),
        "supernode": os.getppid(),
        "folder": str(folder.path),
    }
    try:
        with _worker(folder, task) as connection, connection.makefile("rwb") as stream:
            write_packet(stream, packet)
            reply = read_packet(stream)
    except WorkerFailedError as error:
        folder.remove()
        own = [] if "num-partitions" in node_config else [node_config.get("partition-id")]
        return Packet({"error": str(error), "clients": own, "layouts": {}})
    if reply is None:
        folder.remove()
        return Packet({"error": "its worker ended during training: see worker.log in the node's folder", "layouts": {}})
    return reply


class WorkerFailedError(Exception):
    """Raised if a worker cannot be started. The message is one line."""


def _worker(folder: WorkerFolder, task: dict[str, Any]) -> socket.socket:
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = json.dumps(task, sort_keys=True)
        connection = _connect(folder)
        if connection is not None and folder.task.read_text() == text:
            return connection
        if connection is not None:
            with connection, connection.makefile("rwb") as stream:
                write_packet(stream, Packet({"stop": True}))
                stream.read()
        folder.task.write_text(text)
        return _start(folder, task)


def _start(folder: WorkerFolder, task: dict[str, Any]) -> socket.socket:
    folder.failed.unlink(missing_ok=True)
    folder.socket.unlink(missing_ok=True)
    node_folder = Path(task["node_folder"])
    node_folder.mkdir(parents=True, exist_ok=True)
    with (node_folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fl_lightning.flower.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task).encode())
    process.stdin.close()
    end = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < end:
        connection = _connect(folder)
        if connection is not None:
            return connection
        if process.poll() is not None:
            reason = folder.failed.read_text() if folder.failed.is_file() else f"exit code {process.returncode}"
            raise WorkerFailedError(f"its worker did not start: {reason} (see worker.log in the node's folder)")
        time.sleep(0.1)
    process.kill()
    raise WorkerFailedError(
        f"its worker did not start within {_START_TIMEOUT:g} s (see worker.log in the node's folder)"
    )


def _connect(folder: WorkerFolder) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder.socket))
    except OSError:
        connection.close()
        return None
    return connection
