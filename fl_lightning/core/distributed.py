"""Collective operations that change nothing in a single process.

On a GPU, only small objects go through the CPU.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Return whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(value: Tensor) -> Tensor:
    """Replace a tensor with its sum over all ranks."""
    if is_distributed():
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
    return value


def max_over_ranks(value: Tensor) -> Tensor:
    """Replace a tensor with its elementwise maximum over all ranks."""
    if is_distributed() and value.numel():
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def broadcast_from_zero(value: Tensor) -> Tensor:
    """Replace a tensor with rank zero's."""
    if is_distributed():
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
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
