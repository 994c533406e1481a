"""A federation in one process: real nodes and a real server, with packets that are passed on in memory."""

import io
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_lightning import FederatedDataModule, FederatedModule, __version__
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.federation import FederationSettings
from fl_lightning.flower.memory import NodeMemory
from fl_lightning.flower.node import Node
from fl_lightning.flower.packet import Packet, read_packet, write_packet
from fl_lightning.flower.post import Post, Undelivered
from fl_lightning.flower.remote_data import RemoteData
from fl_lightning.flower.remote_training import RemoteTraining
from fl_lightning.flower.roll import Roll
from tests.toys import Blobs, quiet_trainer


class LoopbackPost(Post):
    """Answers are made when they are collected, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[Packet], Packet]] = {}
        #: how often each node was started again
        self.restarts: dict[int, int] = {}
        self.waiting: dict[str, tuple[int, Packet]] = {}
        self.requests: list[Packet] = []
        self.lifetimes: list[float] = []
        self.replies: list[Packet] = []
        self._next = 0

    def nodes(self) -> dict[int, str]:
        return {node: str(self.restarts.get(node, 0)) for node in self.answers}

    def send_all(self, kind: str, packets: Iterable[tuple[int, Packet]], seconds: float) -> list[str]:
        return [self.send(node, kind, packet, seconds) for node, packet in packets]

    def send(self, node: int, kind: str, packet: Packet, seconds: float) -> str:
        self._next += 1
        self.waiting[str(self._next)] = (node, through_bytes(packet))
        self.requests.append(packet)
        self.lifetimes.append(seconds)
        return str(self._next)

    def collect(self, messages: Iterable[str]) -> dict[str, Packet | Undelivered]:
        found: dict[str, Packet | Undelivered] = {}
        for number in [number for number in messages if number in self.waiting]:
            node, packet = self.waiting.pop(number)
            if node in self.answers:
                found[number] = through_bytes(self.answers[node](packet))
                self.replies.append(found[number])
            else:
                found[number] = Undelivered("the node is gone")
        return found


@contextmanager
def prints(caplog, match: str) -> Iterator[None]:
    """Check that one of the lines that the server prints matches a pattern."""
    with caplog.at_level(logging.INFO):
        try:
            yield
        finally:
            assert any(re.match(match, message) for message in caplog.messages), caplog.messages


def through_bytes(packet: Packet) -> Packet:
    """Write a packet to a stream and read it back."""
    stream = io.BytesIO()
    write_packet(stream, packet)
    stream.seek(0)
    read = read_packet(stream)
    assert read is not None
    return read


class Parked:
    """A node whose Trainer waits in a thread of its own, while others call its ``answer``."""

    def __init__(self, module, data: FederatedDataModule, server: FederatedServer, clients, folder: Path) -> None:
        self._ready, self._end = threading.Event(), threading.Event()
        self._node = Node(server, lambda _: clients, {"client.epochs": 1}, NodeMemory(folder), self._serve)
        self._trainer = quiet_trainer(max_epochs=1, limit_val_batches=0, callbacks=[self._node])
        self._thread = threading.Thread(target=self._run, args=(module, data), daemon=True)
        self._error: BaseException | None = None
        self._thread.start()
        self._ready.wait(60)
        if self._error is not None:
            raise self._error

    def _run(self, module, data) -> None:
        try:
            self._trainer.fit(FederatedModule(module), data)
        except BaseException as error:
            self._error = error
            self._ready.set()

    def _serve(self, answer: Callable[[Packet], Packet]) -> None:
        self.answer = answer
        self._ready.set()
        self._end.wait()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)


class Federation:
    """Nodes that stay, and servers that come and go.

    Args:
        make_module: makes the model.
        make_server: makes the server's callback, with a fresh aggregator.
        partition: divides the data among the clients.
        folder: folder of the nodes.
        nodes: number of nodes; each has every n-th client.
        settings: settings of the federation.
    """

    def __init__(self, make_module, make_server, partition, folder: Path, nodes: int = 2, **settings) -> None:
        self.make_module, self.make_server, self.partition = make_module, make_server, partition
        self.folder = folder
        self.post = LoopbackPost()
        self.settings = FederationSettings(**{"wait": 10, "timeout": 20, **settings})
        self._parked: dict[int, Parked] = {}
        for number in range(nodes):
            self.start(number, range(number, partition.num_clients, nodes))

    def start(self, number: int, clients: Sequence[int], data: FederatedDataModule | None = None) -> None:
        data = data or FederatedDataModule(Blobs(), partition=self.partition)
        parked = Parked(self.make_module(), data, self.make_server(), clients, self.folder / str(number))
        self._parked[number] = parked
        self.post.answers[number] = parked.answer

    def stop(self, number: int) -> None:
        self.post.answers.pop(number, None)
        self._parked.pop(number).stop()

    def identity(self, server: FederatedServer) -> dict:
        counts = server.aggregator.needs_class_counts
        return {"version": __version__, "settings": {"client.epochs": 1}, "class_counts": counts}

    def run(self, rounds: int = 3, selection=None, callbacks=(), ckpt_path=None, **flags):
        server = self.make_server()
        data = RemoteData(Blobs(), partition=self.partition, selection=selection)
        data.roll = Roll(self.post, self.identity(server), self.partition.num_clients)
        data.wait = self.settings.wait
        self.training = server.training = RemoteTraining(self.post, data.roll, server, self.settings)
        module = FederatedModule(self.make_module())
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[server, *callbacks], **flags)
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return dict(module.state_dict()), trainer

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._parked):
            self.stop(number)
