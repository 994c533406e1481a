"""Packets through Flower: the server's ``Grid``, and the records in a Flower message."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_lightning.flower.packet import Packet
from fl_lightning.flower.post import Post, Undelivered

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_BYTES = "fl_lightning.bytes"


def to_records(packet: Packet) -> RecordDict:
    """Return a packet as the content of a Flower message: a string, and one array of bytes per group."""
    arrays = {name: Array("uint8", (len(data),), _BYTES, bytes(data)) for name, data in packet.groups.items()}
    return RecordDict({"note": ConfigRecord({"json": json.dumps(packet.note)}), "groups": ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Packet:
    """Return the packet in a Flower message. The content is checked, and nothing is unpickled."""
    note, groups = records.config_records.get("note"), records.array_records.get("groups")
    text = note.get("json") if note is not None else None
    if not isinstance(text, str) or groups is None or any(array.stype != _BYTES for array in groups.values()):
        return Packet({"error": "it answered with a message that is not from fl_lightning"})
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        return Packet({"error": "it answered with a note that is not JSON"})
    return Packet(parsed, {name: array.data for name, array in groups.items()})


class GridPost(Post):
    """Delivers packets through Flower's SuperLink.

    Args:
        grid: what Flower gives to the server's app.
    """

    def __init__(self, grid: "Grid") -> None:
        self._grid = grid

    def nodes(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def send(self, node: int, kind: str, packet: Packet, seconds: float) -> str:
        message = Message(to_records(packet), node, kind, ttl=seconds)
        (number,) = self._grid.push_messages([message])
        return number

    def collect(self, messages: Iterable[str]) -> dict[str, Packet | Undelivered]:
        answers: dict[str, Packet | Undelivered] = {}
        for message in self._grid.pull_messages(list(messages)):
            number = message.metadata.reply_to_message_id
            if message.has_error():
                answers[number] = Undelivered(f"Flower's error {message.error.code}: {message.error.reason}")
            else:
                answers[number] = from_records(message.content)
        return answers
