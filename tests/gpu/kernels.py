"""Runs the operations of emulated devices: CPU kernels on the same memory."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: operations that torch's own CUDA code performs without launching a kernel, besides views and allocations
_WITHOUT_KERNEL = {"aten::_unsafe_view", "aten::resize_", "aten::record_stream", "aten::is_pinned", "aten::_pin_memory"}
#: results that are on the host on CUDA too, by position
_HOST_RESULTS = {"aten::_pack_padded_sequence": 1, "aten::_pad_packed_sequence": 1}


@cache
def is_composite(operation: Any) -> bool:
    """Return whether the operation is made of others."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd")


@cache
def needs_no_kernel(operation: Any) -> bool:
    """Return whether torch's own CUDA implementation launches no kernel: it makes a view or allocates memory."""
    name = operation._schema.name
    if name in _WITHOUT_KERNEL or torch.Tag.inplace_view in operation.tags:
        return True
    if name.startswith("aten::") and "empty" in name and not name.startswith("aten::_empty_affine"):
        return True
    returns = operation._schema.returns
    return bool(returns) and all(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def run_on_host(operation: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    """Run an operation's CPU kernel on the memory of its arguments, and put new results on ``device``."""
    from torch.utils._pytree import tree_map_only

    originals: dict[int, Tensor] = {}
    aliases: list[Tensor] = []

    def lower(tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor
        alias = host_alias(tensor)
        originals[id(alias)] = tensor
        aliases.append(alias)
        return alias

    def lift(tensor: Tensor) -> Tensor:
        if id(tensor) in originals:
            return originals[id(tensor)]
        return _to_device(tensor, device) if device.type == "cuda" else tensor

    args, kwargs = tree_map_only(Tensor, lower, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    pointers = [alias.untyped_storage().data_ptr() for alias in aliases]
    out = _CUDA_ONLY.get(operation._schema.name, operation)(*args, **kwargs)
    if pointers != [alias.untyped_storage().data_ptr() for alias in aliases]:
        raise NotImplementedError(f"{operation} resized one of its arguments, which the emulated GPU cannot follow")
    position = _HOST_RESULTS.get(operation._schema.name)
    if position is not None:
        return tuple(value if number == position else lift(value) for number, value in enumerate(out))
    return tree_map_only(Tensor, lift, out)


def host_alias(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over the memory of a CUDA tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 or storage.data_ptr() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    alias = torch.empty(0, dtype=tensor.dtype)
    untyped = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return alias.set_(untyped, tensor.storage_offset(), tensor.size(), tensor.stride())


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a new CUDA tensor with the contents and the strides of a CPU tensor."""
    moved = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.numel():
        last = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
        ctypes.memmove(moved.data_ptr(), tensor.data_ptr(), (1 + last) * tensor.element_size())
    return moved


def _batch_norm(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    results = torch.ops.aten.native_batch_norm(inputs, weight, bias, mean, var, training, momentum, eps)
    return *results, torch.empty(0, dtype=torch.uint8)


def _batch_norm_backward(
    inputs: Tensor,
    grad: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    saved_mean: Tensor | None,
    saved_var: Tensor | None,
    eps: float,
    reserve: Tensor,
) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_batch_norm_backward(
        grad, inputs, weight, mean, var, saved_mean, saved_var, True, eps, [True, True, True]
    )


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new_cell = f * cell + i * g
    return o * new_cell.tanh(), new_cell, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    cell: Tensor,
    new_cell: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    grad_hidden = torch.zeros_like(new_cell) if grad_hidden is None else grad_hidden
    grad_cell = torch.zeros_like(new_cell) if grad_cell is None else grad_cell
    tanh = new_cell.tanh()
    through = grad_hidden * o * (1 - tanh * tanh) + grad_cell
    parts = [
        through * g * i * (1 - i),
        through * cell * f * (1 - f),
        through * i * (1 - g * g),
        grad_hidden * tanh * o * (1 - o),
    ]
    gates = torch.cat(parts, 1)
    return gates, through * f, gates.sum(0) if has_bias else None


#: operations that only CUDA has, as CPU code
_CUDA_ONLY: dict[str, Callable[..., Any]] = {
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
