"""Writes event files without Lightning, so that a process that imports this module starts quickly."""

import struct
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary


def write_events(
    folder: Path, scalars: dict[str, list[float]], start: float = 1000.0, first: int = 0, resumed: bool = False
) -> None:
    """Write the events of one process: rounds from ``first`` on that take ten seconds each, beginning at ``start``."""
    named = folder / f"events.out.tfevents.{start:.0f}.host.1.0"
    events = [Event(wall_time=start, file_version="brain.Event:2")]
    if resumed:
        events.append(Event(wall_time=start, step=first, session_log=SessionLog(status=SessionLog.START)))
    for tag, values in scalars.items():
        events += [
            Event(
                wall_time=start + 10.0 * (index + 1),
                step=first + index,
                summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]),
            )
            for index, value in enumerate(values)
        ]
    _write_records(named, events)


def _write_records(file: Path, events: list[Event]) -> None:
    with file.open("wb") as stream:
        for event in events:
            data = event.SerializeToString()
            length = struct.pack("<Q", len(data))
            stream.write(length + _checksum(length) + data + _checksum(data))


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of a record. Importing TensorBoard's writer takes longer than a test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
