"""Copies between the host and a GPU that do not make the host wait for the GPU."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on ``device``. A copy to a GPU goes through pinned memory, so the host need not wait for it."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def to_pinned_memory(tensor: Tensor) -> Tensor:
    """Return a copy of a GPU's tensor in pinned memory of the host.

    The copy is complete after ``torch.cuda.synchronize``; copying it back to the GPU is always safe.
    """
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def free_memory(device: torch.device) -> float:
    """Return how many bytes of a device's memory are free; infinite if the device cannot tell."""
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else float("inf")
