"""Packets through Flower: the server's ``Grid``, and the records in a Flower message."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_lightning.flower.packet import Packet
from fl_lightning.flower.post import Post, Undelivered

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_BYTES = "fl_lightning.bytes"
#: Packets for one node share a message up to this many bytes, so that neither side holds many large models at once.
_BUNDLE = 32_000_000


def to_records(packets: Sequence[Packet]) -> RecordDict:
    """Return packets as the content of a Flower message: for each packet a string, and an array of bytes per group."""
    records = RecordDict()
    for place, packet in enumerate(packets):
        arrays = {name: Array("uint8", (len(data),), _BYTES, bytes(data)) for name, data in packet.groups.items()}
        records[f"note {place}"] = ConfigRecord({"json": json.dumps(packet.note)})
        records[f"groups {place}"] = ArrayRecord(arrays)
    return records


def from_records(records: RecordDict) -> list[Packet]:
    """Return the packets in a Flower message. The content is checked, and nothing is unpickled."""
    return [_from_record(records, place) for place in range(max(1, len(records.config_records)))]


def _from_record(records: RecordDict, place: int) -> Packet:
    note, groups = records.config_records.get(f"note {place}"), records.array_records.get(f"groups {place}")
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

    Flower starts a process per message, so packets for one node share a message. What they have in common, such as the
    global model, is then sent once, because Flower sends equal arrays of a message only once.

    Args:
        grid: what Flower gives to the server's app.
    """

    def __init__(self, grid: "Grid") -> None:
        self._grid = grid
        #: the numbers of the packets in each message
        self._bundles: dict[str, list[str]] = {}
        #: answers that came with another one, until they are collected
        self._arrived: dict[str, Packet | Undelivered] = {}

    def nodes(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def send_all(self, kind: str, packets: Iterable[tuple[int, Packet]], seconds: float) -> list[str]:
        numbers: list[str] = []
        for node, bundle in _bundles(packets):
            (sent,) = self._grid.push_messages([Message(to_records(bundle), node, kind, ttl=seconds)])
            self._bundles[sent] = [f"{sent} {place}" for place in range(len(bundle))]
            numbers += self._bundles[sent]
        return numbers

    def collect(self, numbers: Iterable[str]) -> dict[str, Packet | Undelivered]:
        asked = list(numbers)
        awaited = {number.split()[0] for number in asked if number not in self._arrived}
        for message in self._grid.pull_messages(sorted(awaited & self._bundles.keys())):
            answers: list[Packet | Undelivered] = []
            bundle = self._bundles.pop(message.metadata.reply_to_message_id)
            if message.has_error():
                error = Undelivered(f"Flower's error {message.error.code}: {message.error.reason}")
                answers = [error] * len(bundle)
            else:
                answers = [*from_records(message.content)]
            missing = Packet({"error": f"it answered with {len(answers)} of {len(bundle)} packets"})
            self._arrived.update(zip_longest(bundle, answers[: len(bundle)], fillvalue=missing))
        return {number: self._arrived.pop(number) for number in asked if number in self._arrived}


def _bundles(packets: Iterable[tuple[int, Packet]]) -> Iterator[tuple[int, list[Packet]]]:
    """Yield nodes with consecutive packets that can travel to them together."""
    for node, letters in groupby(packets, key=lambda letter: letter[0]):
        bundle: list[Packet] = []
        size = 0
        for _, packet in letters:
            if bundle and size + packet.num_bytes > _BUNDLE:
                yield node, bundle
                bundle, size = [], 0
            bundle.append(packet)
            size += packet.num_bytes
        yield node, bundle
