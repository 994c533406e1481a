"""Packets through Flower: the server's ``Grid``, and the records in a Flower message."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fl_lightning.flower.packet import Packet, read_packet, write_packet
from fl_lightning.flower.post import Post, Undelivered

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_BYTES = "fl_lightning.bytes"
_RECORD = "packets"
#: Packets for one node share a message up to this many bytes, so that neither side holds many large models at once.
_BUNDLE = 32_000_000


def to_records(packets: Iterable[Packet]) -> RecordDict:
    """Return packets as the content of a Flower message.

    All of them are one array of bytes, because Flower makes several requests for every record and every array.
    """
    stream = BytesIO()
    for packet in packets:
        write_packet(stream, packet)
    data = stream.getvalue()
    return RecordDict({_RECORD: ArrayRecord({_RECORD: Array("uint8", (len(data),), _BYTES, data)})})


def from_records(records: RecordDict) -> list[Packet]:
    """Return the packets in a Flower message. The content is checked, and nothing is unpickled."""
    record = records.array_records.get(_RECORD)
    array = None if record is None else record.get(_RECORD)
    packets: list[Packet] = []
    if array is not None and array.stype == _BYTES:
        stream = BytesIO(array.data)
        with suppress(ValueError, KeyError, TypeError):
            while (packet := read_packet(stream)) is not None:
                packets.append(packet)
    if all(isinstance(packet.note, dict) for packet in packets) and packets:
        return packets
    return [Packet({"error": "it answered with a message that is not from fl_lightning"})]


class GridPost(Post):
    """Delivers packets through Flower's SuperLink.

    Flower starts a process per message, so packets for one node share a message.

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
            bundle = self._bundles.pop(message.metadata.reply_to_message_id)
            answers: list[Packet | Undelivered] = []
            if message.has_error():
                reason = f"Flower's error {message.error.code}: {(message.error.reason or '').removeprefix('Error: ')}"
                answers += [Undelivered(reason) for _ in bundle]
            else:
                answers += from_records(message.content)[: len(bundle)]
            missing = Packet({"error": f"it answered with {len(answers)} of {len(bundle)} packets"})
            answers += [missing] * (len(bundle) - len(answers))
            self._arrived.update(zip(bundle, answers, strict=True))
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
