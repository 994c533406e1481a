"""Collective operations that change nothing in a single process.

On a GPU, only small objects go through the CPU. Empty tensors are not sent, because not every backend accepts them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fl_lightning.core.state import StateDict
from fl_lightning.core.transfer import to_device


def is_distributed() -> bool:
    """Return whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(value: Tensor) -> Tensor:
    """Replace a tensor with its sum over all ranks."""
    if is_distributed() and value.numel():
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
    return value


def max_over_ranks(value: Tensor) -> Tensor:
    """Replace a tensor with its elementwise maximum over all ranks."""
    if is_distributed() and value.numel():
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def broadcast_from_zero(value: Tensor) -> Tensor:
    """Replace a tensor with rank zero's."""
    if is_distributed() and value.numel():
        dist.broadcast(value, src=0)
    return value


def gather_objects(items: list[Any]) -> list[Any]:
    """Return every rank's items in one list, in the order of ranks. Meant for small, picklable objects."""
    if not is_distributed():
        return items
    gathered: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, items)
    return [item for part in gathered for item in part]


def gather_rows(rows: Tensor) -> Tensor:
    """Stack every rank's rows, in the order of ranks; ranks may have different numbers of rows, or none."""
    if not is_distributed():
        return rows
    counts = gather_objects([rows.shape[0]])
    padded = rows.new_zeros(max(counts), rows.shape[1])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    if padded.numel():
        dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def gather_states(states: Sequence[Mapping[str, Tensor]], device: torch.device) -> list[StateDict]:
    """Return every rank's dictionaries of tensors in one list, in the order of ranks.

    Only names, types and shapes are pickled; the values are sent from device to device, as bytes.

    Args:
        states: this rank's dictionaries.
        device: device of this rank, on which the results are.
    """
    if not is_distributed():
        return [dict(state) for state in states]
    described = gather_objects([[{name: (value.dtype, value.shape) for name, value in s.items()} for s in states]])
    sizes = [[kind.itemsize * shape.numel() for state in rank for kind, shape in state.values()] for rank in described]
    sent = torch.zeros(max(map(sum, sizes)), dtype=torch.uint8, device=device)
    values = [to_device(value, device).flatten().view(torch.uint8) for state in states for value in state.values()]
    if values:
        torch.cat(values, out=sent[: sum(map(len, values))])
    received = [torch.empty_like(sent) for _ in described]
    if len(sent):
        dist.all_gather(received, sent)
    gathered = []
    for rank, rank_sizes, buffer in zip(described, sizes, received, strict=True):
        pieces = iter(buffer[: sum(rank_sizes)].split(rank_sizes))
        for state in rank:
            # a piece is cloned first, because it may begin at a position that its type does not allow
            gathered.append({n: next(pieces).clone().view(kind).view(shape) for n, (kind, shape) in state.items()})
    return gathered
