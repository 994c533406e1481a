"""A message between the server and a node: a note in JSON, and groups of bytes.

This file imports only the standard library.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

#: the length of a header and the lengths in it are sent as this many bytes
_LENGTH = 8
#: A longer note is not read, because it cannot come from this package.
_MAX_HEADER = 64_000_000


class Stream(Protocol):
    """What packets are written to and read from."""

    def read(self, size: int, /) -> bytes:
        """Read this many bytes, or fewer at the end."""
        ...

    def write(self, data: bytes, /) -> int:
        """Write bytes."""
        ...

    def flush(self) -> None:
        """Pass on what was written."""


@dataclass(frozen=True)
class Packet:
    """A message. Nothing in it is ever unpickled.

    Args:
        note: what JSON can hold.
        groups: bytes by name; ``note["layouts"]`` says which tensors they hold.
    """

    note: dict[str, Any]
    groups: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The size on the wire, without what the transport adds."""
        return len(json.dumps(self.note)) + sum(map(len, self.groups.values()))


def write_packet(stream: Stream, packet: Packet) -> None:
    """Write a packet to a stream, such as a socket's."""
    lengths = [[name, len(data)] for name, data in packet.groups.items()]
    header = json.dumps({"note": packet.note, "groups": lengths}).encode()
    stream.write(len(header).to_bytes(_LENGTH, "big") + header)
    for data in packet.groups.values():
        stream.write(data)
    stream.flush()


def read_packet(stream: Stream) -> Packet | None:
    """Read a packet from a stream; None if the stream ended before the packet was complete."""
    length = int.from_bytes(_read(stream, _LENGTH) or b"", "big")
    if not 0 < length <= _MAX_HEADER:
        return None
    header = _read(stream, length)
    if header is None:
        return None
    described = json.loads(header)
    groups = {}
    for name, size in described["groups"]:
        data = _read(stream, size)
        if data is None:
            return None
        groups[name] = data
    return Packet(described["note"], groups)


def _read(stream: Stream, size: int) -> bytes | None:
    data = stream.read(size)
    return data if len(data) == size else None
