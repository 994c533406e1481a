"""Packets in Flower's messages."""

import pytest

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fl_lightning[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict  # noqa: E402
from flwr.proto.node_pb2 import NodeInfo  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fl_lightning.flower import grid as grid_module  # noqa: E402
from fl_lightning.flower.apps import client_app  # noqa: E402
from fl_lightning.flower.grid import GridPost, from_records, to_records  # noqa: E402
from fl_lightning.flower.packet import Packet  # noqa: E402
from fl_lightning.flower.post import Undelivered  # noqa: E402

PACKET = Packet({"client": 3, "rate": 0.1, "names": ["ä"]}, {"start": b"\x00\x01", "empty": b""})
OTHER = Packet({"client": 4}, {"start": b"\x00\x01"})


class LoopbackGrid:
    """A Grid whose only node answers with the packet that it got, or with an error."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.sent: dict[str, Message] = {}

    def get_nodes(self):
        return [NodeInfo(node_id=5, last_activated_at="2026-01-01T00:00:00")]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.sent))
            self.sent[message.metadata.message_id] = message
        return list(self.sent)[-1:]

    def pull_messages(self, message_ids):
        for number in message_ids:
            if number in self.sent:
                message = self.sent.pop(number)
                answer = Error(code=3, reason="Error: too late") if self.fails else message.content
                yield Message(answer, reply_to=message)


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


def test_packets_pass_through_records_unchanged():
    assert from_records(to_records([PACKET, OTHER])) == [PACKET, OTHER]


def test_a_packet_passes_through_the_grid():
    post = GridPost(LoopbackGrid())
    assert post.nodes() == {5: "2026-01-01T00:00:00"}
    number = post.send(5, "train", PACKET, 10.0)
    assert post.collect(["other"]) == {}
    assert post.collect([number]) == {number: PACKET}
    assert post.collect([number]) == {}


def test_flowers_errors_are_undelivered():
    post = GridPost(LoopbackGrid(fails=True))
    number = post.send(5, "train", PACKET, 10.0)
    assert post.collect([number]) == {number: Undelivered("Flower's error 3: too late")}


def test_a_node_that_is_refused_says_so_where_it_runs(tmp_path, capsys):
    app = client_app(str(tmp_path / "client.py"), "run.yaml")
    message = Message(to_records([Packet({"refused": "it has no clients"})]), 5, "query")
    message.metadata.__dict__["_message_id"] = "1"
    reply = app(message, Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={}))
    assert from_records(reply.content)[0].note == {"layouts": {}}
    assert capsys.readouterr().err == "The server refuses this node: it has no clients\n"


def packed(data: bytes) -> RecordDict:
    return RecordDict({"packets": ArrayRecord({"packets": Array("uint8", (len(data),), "fl_lightning.bytes", data)})})


def test_consecutive_packets_for_a_node_share_a_message():
    grid = LoopbackGrid()
    post = GridPost(grid)
    numbers = post.send_all("train", [(5, PACKET), (5, OTHER), (6, OTHER)], 10.0)
    assert len(set(numbers)) == 3
    assert len(grid.sent) == 2
    assert post.collect(numbers[1:2]) == {numbers[1]: OTHER}
    assert post.collect(numbers) == {numbers[0]: PACKET, numbers[2]: OTHER}


def test_large_packets_travel_alone(monkeypatch):
    monkeypatch.setattr(grid_module, "_BUNDLE", PACKET.num_bytes + OTHER.num_bytes)
    grid = LoopbackGrid()
    GridPost(grid).send_all("train", [(5, PACKET), (5, OTHER), (5, OTHER)], 10.0)
    assert [len(from_records(message.content)) for message in grid.sent.values()] == [2, 1]


def test_an_error_or_a_missing_answer_concerns_every_packet_of_the_message():
    failing, short = LoopbackGrid(fails=True), LoopbackGrid()
    for grid, kind in ((failing, Undelivered), (short, Packet)):
        post = GridPost(grid)
        numbers = post.send_all("train", [(5, PACKET), (5, OTHER)], 10.0)
        for message in grid.sent.values():
            message.content = to_records([PACKET])
        answers = post.collect(numbers)
        assert isinstance(answers[numbers[1]], kind)
    assert answers[numbers[0]] == PACKET
    assert answers[numbers[1]].note["error"] == "it answered with 1 of 2 packets"


@pytest.mark.parametrize(
    "records",
    [
        RecordDict({}),
        RecordDict({"note": ConfigRecord({"json": "{}"})}),
        packed(b""),
        packed(bytes(7) + b"\x02{]"),
        packed(bytes(7) + b"\x02[]"),
        packed(bytes(7) + b"\x02{}"),
        packed(bytes(7) + b"\x17" + b'{"note": 1,"groups":[]}'),
        packed(bytes(7) + b"\x1b" + b'{"note": {},"groups":[[1]]}'),
    ],
)
def test_messages_of_others_are_an_error_and_not_an_exception(records):
    assert "it answered with" in from_records(records)[0].note["error"]
