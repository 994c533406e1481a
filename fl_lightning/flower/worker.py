"""The long-lived process of a node, which keeps the module, the data and the device between messages.

Flower starts a process per message. Importing Lightning there would take longer than a round, so that process only
passes the message on to this one, through a socket that only its owner can open.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_lightning.flower.node_folder import WorkerFolder, is_alive
from fl_lightning.flower.packet import Packet, Stream, read_packet, write_packet

#: how often the worker checks whether its SuperNode is still running, in seconds
_CHECK_INTERVAL = 0.5


def main() -> None:
    """Run the worker that standard input describes."""
    task = json.load(sys.stdin)
    folder = WorkerFolder(Path(task["folder"]))
    folder.process.write_text(str(os.getpid()))
    try:
        _work(folder, task)
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        kind = type(error).__name__
        folder.failed.write_text(lines[0] if kind == "MisconfigurationError" else f"{kind}: {lines[0]}")
        raise
    finally:
        folder.socket.unlink(missing_ok=True)
        if not is_alive(task["supernode"]):
            folder.remove()


def _work(folder: WorkerFolder, task: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.path.insert(0, task["app"])
    sys.argv = ["fl-lightning"]
    from fl_lightning._lightning.quiet import silence_irrelevant_messages
    from fl_lightning.cli.named_classes import import_named_classes
    from fl_lightning.flower.cli import NodeCLI, node_arguments

    arguments = node_arguments(task["config"], task["node_config"])
    import_named_classes(arguments)
    silence_irrelevant_messages()

    def serve(answer: Callable[[Packet], Packet]) -> None:
        logging.info("ready")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder.socket))
            folder.socket.chmod(0o600)
            listener.listen()
            listener.settimeout(_CHECK_INTERVAL)
            while is_alive(task["supernode"]):
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, connection.makefile("rwb") as stream:
                    packet = read_packet(stream)
                    if packet is None:
                        continue
                    if packet.note.get("stop"):
                        return
                    _reply(stream, answer(packet))

    NodeCLI(arguments, task["node_config"], Path(task["node_folder"]), serve)


def _reply(stream: Stream, packet: Packet) -> None:
    try:
        write_packet(stream, packet)
    except OSError:
        logging.warning("nobody is waiting for the answer any more")


if __name__ == "__main__":
    main()
