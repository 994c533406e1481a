"""Collective operations, which do nothing in a single process.

What a round exchanges is sent as tensors, from device to device. Empty tensors are not sent, because not every backend
accepts them.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fl_lightning.core.state import StateDict
from fl_lightning.core.transfer import to_device

#: how many bytes of a message are sent together with its length; longer messages take a second exchange
_WITH_LENGTHS = 8192


def is_distributed() -> bool:
    """Return whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(*values: Tensor) -> None:
    """Replace tensors with their sums over all ranks. All tensors of one type are sent in one buffer."""
    _reduce(values, "SUM")


def max_over_ranks(*values: Tensor) -> None:
    """Replace tensors with their elementwise maxima over all ranks. All tensors of one type are sent in one buffer."""
    _reduce(values, "MAX")


def broadcast_from_zero(value: Tensor) -> Tensor:
    """Overwrite a tensor with rank zero's values, and return it."""
    if is_distributed() and value.numel():
        dist.broadcast(value, src=0)
    return value


def gather_objects(items: list[Any], device: torch.device) -> list[Any]:
    """Return every rank's items in one list, in rank order. They are pickled; rounds use :func:`gather_messages`.

    Args:
        items: this rank's items.
        device: device of this rank, which the bytes pass through.
    """
    if not is_distributed():
        return items
    buffer = torch.frombuffer(bytearray(pickle.dumps(items)), dtype=torch.uint8)
    return [item for _, part in _gather_buffers(0, to_device(buffer, device)) for item in pickle.loads(_bytes(part))]


def gather_messages(
    messages: Sequence[tuple[Any, Mapping[str, Tensor]]], device: torch.device
) -> list[tuple[Any, StateDict]]:
    """Return every rank's messages in one list, in the order of ranks.

    Each rank sends one buffer: a description of its messages in JSON, then the values of the tensors as bytes.

    Args:
        messages: this rank's messages, each a note that JSON can hold and tensors by name.
        device: device of this rank, on which the results are placed.
    """
    if not is_distributed():
        return [(note, dict(tensors)) for note, tensors in messages]
    described = [
        (note, [(name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in tensors.items()])
        for note, tensors in messages
    ]
    text = json.dumps(described) if described else ""
    header = to_device(torch.from_numpy(np.frombuffer(bytearray(text.encode()), dtype=np.uint8)), device)
    values = [_as_bytes(to_device(value, device)) for _, each in messages for value in each.values()]
    gathered: list[tuple[Any, StateDict]] = []
    for length, buffer in _gather_buffers(len(header), torch.cat([header, *values])):
        begin = length
        for note, entries in json.loads(_bytes(buffer[:length]) or b"[]"):
            tensors: StateDict = {}
            for name, kind, shape in entries:
                dtype = getattr(torch, kind)
                end = begin + dtype.itemsize * torch.Size(shape).numel()
                # a piece is cloned first, because it may start at an offset that is not aligned for its type
                tensors[name] = buffer[begin:end].clone().view(dtype).view(shape)
                begin = end
            gathered.append((note, tensors))
    return gathered


def gather_notes(notes: Sequence[Any], device: torch.device) -> list[Any]:
    """Return every rank's notes, which JSON must be able to hold, in one list, in the order of ranks."""
    return [note for note, _ in gather_messages([(note, {}) for note in notes], device)]


def _reduce(values: Sequence[Tensor], operation: str) -> None:
    if not is_distributed():
        return
    for kind in dict.fromkeys(value.dtype for value in values):
        group = [value for value in values if value.dtype == kind and value.numel()]
        if not group:
            continue
        buffer = torch.cat([value.reshape(-1) for value in group])
        dist.all_reduce(buffer, op=getattr(dist.ReduceOp, operation))
        for value, piece in zip(group, buffer.split([value.numel() for value in group]), strict=True):
            value.copy_(piece.view_as(value))


def _as_bytes(value: Tensor) -> Tensor:
    return value.resolve_conj().contiguous().flatten().view(torch.uint8)


def _gather_buffers(header: int, buffer: Tensor) -> list[tuple[int, Tensor]]:
    """Return the length of every rank's header, and its buffer.

    The first bytes travel with the lengths, because a small exchange takes as long as one that is smaller still.
    """
    lengths = to_device(torch.tensor([header, len(buffer)]).view(torch.uint8), buffer.device)
    begin, rest = buffer[:_WITH_LENGTHS], buffer[_WITH_LENGTHS:]
    first = _all_gather(torch.cat([lengths, begin, begin.new_zeros(_WITH_LENGTHS - len(begin))]))
    sizes = torch.stack([part[: len(lengths)] for part in first]).view(torch.int64).tolist()
    received = [part[len(lengths) :] for part in first]
    missing = max(size for _, size in sizes) - _WITH_LENGTHS
    if missing > 0:
        others = _all_gather(torch.cat([rest, rest.new_zeros(missing - len(rest))]))
        received = [torch.cat(parts) for parts in zip(received, others, strict=True)]
    return [(length, part[:size]) for part, (length, size) in zip(received, sizes, strict=True)]


def _all_gather(value: Tensor) -> list[Tensor]:
    gathered = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, value)
    return gathered


def _bytes(buffer: Tensor) -> bytes:
    return buffer.cpu().numpy().tobytes()
