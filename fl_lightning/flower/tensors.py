"""Tensors as bytes: each group of tensors is one array of bytes, with a layout in JSON."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.core.state import StateDict
from fl_lightning.flower.packet import Packet

#: the types of numbers that may be sent, by name
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}

Groups = Mapping[str, Mapping[str, Tensor]]
#: the name, the type and the shape of each tensor, in the order of their bytes
Layout = list[tuple[str, str, list[int]]]


class WireError(ValueError):
    """Raised for a packet with wrong or missing content. The message is one line, for whoever runs the server."""


def encode(note: Mapping[str, Any], groups: Groups) -> Packet:
    """Return a packet with a note and groups of tensors."""
    filled = {name: tensors for name, tensors in groups.items() if tensors}
    layouts = {name: _layout_of(tensors) for name, tensors in filled.items()}
    return Packet({**note, "layouts": layouts}, {name: _bytes_of(tensors) for name, tensors in filled.items()})


def decode(packet: Packet, device: torch.device) -> dict[str, StateDict]:
    """Return the groups of tensors in a packet, on a device."""
    layouts = packet.note.get("layouts")
    if not isinstance(layouts, dict) or set(layouts) != set(packet.groups):
        raise WireError("its groups of tensors do not match their description")
    return {name: _tensors_in(name, layouts[name], data, device) for name, data in packet.groups.items()}


def same_bits(first: Tensor, second: Tensor | None) -> bool:
    """Return whether two tensors agree in every bit, unlike ``torch.equal``, for which 0 and -0 are equal."""
    if second is None or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first is second or torch.equal(_as_bytes(first), _as_bytes(second))


def _layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    return [(name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in tensors.items()]


def _bytes_of(tensors: Mapping[str, Tensor]) -> bytes:
    return b"".join(_as_bytes(value).cpu().numpy().tobytes() for value in tensors.values())


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _tensors_in(group: str, layout: Any, data: bytes, device: torch.device) -> StateDict:
    buffer = torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8)) if data else torch.empty(0)
    tensors: StateDict = {}
    begin = 0
    for entry in layout if isinstance(layout, list) else [None]:
        name, dtype, shape = _checked(group, entry)
        end = begin + dtype.itemsize * torch.Size(shape).numel()
        if end > len(data) or name in tensors:
            raise WireError(f"{group} has too few bytes for {name}, or lists it twice")
        # a piece is cloned first, because it may start at an offset that is not aligned for its type
        piece = buffer[begin:end].clone().view(dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = piece.view(shape).to(device)
        begin = end
    if begin != len(data):
        raise WireError(f"{group} has {len(data)} bytes, but its tensors take {begin}")
    return tensors


def _checked(group: str, entry: Any) -> tuple[str, torch.dtype, list[int]]:
    """Return an entry of a layout, or raise an error if it is not one."""
    if isinstance(entry, list | tuple) and len(entry) == 3:
        name, dtype, shape = entry
        sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if isinstance(name, str) and isinstance(dtype, str) and dtype in _DTYPES and sizes:
            return name, _DTYPES[dtype], shape
    raise WireError(f"{group} is described by {str(entry)[:80]}, which is not a name, a type and a shape")
