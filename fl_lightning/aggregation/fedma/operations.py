"""How units pass through operations without weights: additions, concatenations, pooling, flattening, ..."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fl_lightning.aggregation.fedma.units import Axis, CannotFollowError, Flow, combine, merge_axes

#: functions and methods that treat all units alike and leave each at its place
_ALIKE = frozenset(
    name
    for line in (
        "abs add iadd sub isub mul imul div truediv itruediv floordiv mod neg pow exp log log1p sqrt rsqrt square erf",
        "sin cos reciprocal maximum minimum clamp clip where masked_fill gt lt ge le eq ne and or invert logical_not",
        "relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid hardsigmoid hardswish hardtanh tanh softplus",
        "softsign logsigmoid hardshrink softshrink tanhshrink threshold rrelu softmax log_softmax softmin normalize",
        "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout stochastic_depth drop_path",
        "contiguous clone detach to type type_as float double half bfloat16 cpu cuda requires_grad",
        "zeros_like ones_like rand_like randn_like empty_like",
    )
    for name in line.split()
)
_ALIKE_MODULES: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Sigmoid, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink),
    *(nn.Hardshrink, nn.Softshrink, nn.Threshold, nn.Softmax, nn.LogSoftmax, nn.Softmin),
)
#: attributes and methods that only describe a tensor
_FACTS = frozenset(["size", "shape", "dim", "ndim", "dtype", "device", "numel", "ndimension", "is_floating_point"])
_REDUCTIONS = frozenset(["mean", "sum", "amax", "amin", "logsumexp"])
_POOLING = re.compile(r"(?:adaptive_?|fractional_?)?(?:max|avg|lp)_?pool([123])d", re.IGNORECASE)


@dataclass(frozen=True)
class Stack:
    """Tensors along a new first dimension, each with its own units, such as the final states of an LSTM."""

    flows: tuple[Flow, ...]


def flows_in(value: Any) -> list[Flow]:
    """Return all tensors in nested arguments."""
    if isinstance(value, Flow):
        return [value]
    if isinstance(value, Stack):
        return list(value.flows)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    if isinstance(value, list | tuple):
        return [flow for item in value for flow in flows_in(item)]
    return []


def apply_module(module: nn.Module, flow: Flow) -> Flow | None:
    """Return what comes out of a module without weights; None if it is not known how units pass through it."""
    if isinstance(module, _ALIKE_MODULES):
        return flow
    if isinstance(module, nn.Flatten):
        return _flatten(flow, module.start_dim, module.end_dim)
    pooling = _POOLING.fullmatch(type(module).__name__)
    if pooling:
        return _pool(flow, int(pooling[1]))
    if isinstance(module, nn.Upsample):
        return _pool(flow, (flow.rank or 2) - 2)
    return None


def treats_units_alike(name: str) -> bool:
    """Return whether a function or method computes every entry in the same way, and leaves it at its place."""
    return name.strip("_") in _ALIKE


def apply_function(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what comes out of a function or method.

    Raises:
        CannotFollowError: if units cannot be followed through it.
    """
    if name in _FACTS or name == "_assert" or (name == "getattr" and args[1] in _FACTS):
        return Flow(uniform=True)
    if treats_units_alike(name):
        return combine(flows_in([*args, kwargs]))
    name = name.strip("_")
    rule = _RULES.get(name) or (_reduce if name in _REDUCTIONS else None)
    pooling = _POOLING.fullmatch(name)
    if pooling and isinstance(args[0], Flow):
        return _pool(args[0], int(pooling[1]))
    if rule is None:
        raise CannotFollowError("FedMA does not know this operation")
    try:
        return rule(*args, **kwargs)
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        raise CannotFollowError("FedMA does not know this operation with these arguments") from error


def _pool(flow: Flow, spatial: int) -> Flow:
    if flow.axis is not None and flow.dim >= -spatial:
        raise CannotFollowError("it combines different units")
    return flow


def _interpolate(flow: Flow, *_: Any, **__: Any) -> Flow:
    return _pool(flow, (flow.rank or 2) - 2)


def _pad(flow: Flow, pad: Sequence[Any], *_: Any, **__: Any) -> Flow:
    return _pool(flow, len(pad) // 2)


def _flatten(flow: Flow, start_dim: int = 0, end_dim: int = -1) -> Flow:
    if flow.axis is None:
        return replace(flow, rank=2 if (start_dim, end_dim) == (1, -1) else None, source=None)
    if flow.rank is None and (start_dim, end_dim) == (1, -1):
        return replace(flow, rank=2)
    start, end = flow.from_last(start_dim), flow.from_last(end_dim)
    rank = None if flow.rank is None else flow.rank - (end - start)
    if flow.dim > end:
        return replace(flow, rank=rank)
    if flow.dim < start:
        return replace(flow, rank=rank, dim=flow.dim + end - start)
    if flow.dim != start:
        raise CannotFollowError("it puts other dimensions before the units")
    return replace(flow, rank=rank, dim=end, spread=flow.spread or end > start)


def _reshape(flow: Flow, *shape: Any) -> Flow:
    sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
    rank = len(sizes)
    if flow.axis is None:
        return Flow(rank=rank, uniform=flow.uniform, stage=flow.stage)
    result: Flow | None = None
    place = 1
    if rank == 2 and flow.rank is not None and flow.rank > 2 and flow.dim == 1 - flow.rank:
        result = replace(flow, rank=2, dim=-1, spread=True)
    elif flow.dim == -1 and flow.rank in (2, None) and rank >= 2 and all(size == 1 for size in sizes[2:]):
        result = replace(flow, rank=rank, dim=1 - rank)
    elif flow.dim == -1 and not flow.spread and sizes[-1] == flow.width:
        result, place = replace(flow, rank=rank), -1
    if result is None:
        raise CannotFollowError("it changes the shape in a way that FedMA cannot follow")
    if isinstance(sizes[place], int) and sizes[place] != -1:
        flow.fix_number(f"a reshape in forward expects {sizes[place]} values where -1 would fit any width")
    return result


def _permute(flow: Flow, *dims: Any) -> Flow:
    order = list(dims[0]) if len(dims) == 1 and isinstance(dims[0], list | tuple) else list(dims)
    if flow.axis is None:
        return replace(flow, rank=len(order), source=None)
    flow = replace(flow, rank=len(order))
    return replace(flow, dim=[flow.from_last(dim) for dim in order].index(flow.dim) - len(order))


def _transpose(flow: Flow, dim0: int, dim1: int) -> Flow:
    if flow.axis is None:
        return replace(flow, source=None)
    if flow.rank is None:
        raise CannotFollowError("the number of its dimensions is unknown")
    one, two = flow.from_last(dim0), flow.from_last(dim1)
    return replace(flow, dim={one: two, two: one}.get(flow.dim, flow.dim))


def _squeeze(flow: Flow, dim: int | None = None) -> Flow:
    if flow.axis is None:
        return Flow(uniform=flow.uniform, stage=flow.stage)
    if dim is None:
        return replace(flow, rank=None, dim=-1)
    gone = flow.from_last(dim)
    if gone == flow.dim:
        raise CannotFollowError("it removes the dimension of the units")
    rank = None if flow.rank is None else flow.rank - 1
    return replace(flow, rank=rank, dim=flow.dim + (gone > flow.dim))


def _unsqueeze(flow: Flow, dim: int) -> Flow:
    rank = None if flow.rank is None else flow.rank + 1
    if flow.axis is None:
        return replace(flow, rank=rank, source=None)
    if dim >= 0 and rank is None:
        raise CannotFollowError("the number of its dimensions is unknown")
    new = dim if dim < 0 else dim - (rank or 0)
    return replace(flow, rank=rank, dim=flow.dim - (flow.dim <= new))


def _reduce(flow: Flow, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Flow:
    if flow.axis is None:
        return Flow(uniform=flow.uniform, stage=flow.stage)
    if dim is None:
        return Flow(uniform=True, stage=flow.stage)
    if not isinstance(dim, int) and not all(isinstance(one, int) for one in dim):
        raise CannotFollowError("its dimensions are not fixed")
    gone = [flow.from_last(one) for one in ([dim] if isinstance(dim, int) else dim)]
    if flow.dim in gone:
        return Flow(uniform=keepdim, stage=flow.stage)
    if keepdim:
        return flow
    rank = None if flow.rank is None else flow.rank - len(gone)
    return replace(flow, rank=rank, dim=flow.dim + sum(one > flow.dim for one in gone))


def _get_item(value: Any, index: Any) -> Any:
    if isinstance(value, Stack) and isinstance(index, int):
        return value.flows[index]
    if isinstance(value, list | tuple):
        return value[index]
    if isinstance(value, Stack):
        raise CannotFollowError("it takes the final states apart in a way that FedMA cannot follow")
    if value.axis is None:
        return replace(value, rank=None, source=None)
    indices = list(index) if isinstance(index, tuple) else [index]
    if any(not (one is None or one is Ellipsis or isinstance(one, int | slice)) for one in indices):
        raise CannotFollowError("it picks entries by a tensor")
    taken = sum(one is not None and one is not Ellipsis for one in indices)
    if value.rank is None:
        raise CannotFollowError("the number of its dimensions is unknown")
    place = indices.index(Ellipsis) if Ellipsis in indices else len(indices)
    indices[place : place + 1] = [slice(None)] * (value.rank - taken)
    kept: list[int | None] = []  # the dimension from which each dimension of the result is taken
    dim = -value.rank
    for one in indices:
        if one is None:
            kept.append(None)
            continue
        if dim == value.dim and one != slice(None):
            raise CannotFollowError("it picks units by their places")
        if isinstance(one, slice):
            kept.append(dim)
        dim += 1
    return replace(value, rank=len(kept), dim=kept.index(value.dim) - len(kept))


def _concatenate(tensors: Sequence[Flow], dim: int = 0) -> Flow:
    stage = max(flow.stage for flow in tensors)
    known = [flow for flow in tensors if flow.axis is not None]
    if not known:
        return Flow(stage=stage)
    if len({(flow.dim, flow.spread) for flow in known}) > 1 or len(known) < len(tensors):
        raise CannotFollowError("it joins them with values that are tied to their places")
    first = known[0]
    if first.from_last(dim) != first.dim:
        return replace(combine(known), stage=stage)
    if first.spread:
        raise CannotFollowError("it joins flattened units: flatten after joining them")
    axis: Axis = tuple(stretch for flow in known for stretch in flow.axis or ())
    return replace(first, axis=axis, stage=stage)


def _stack(tensors: Sequence[Flow], dim: int = 0) -> Flow:
    merge_axes([flow.axis for flow in tensors if flow.axis is not None] or [()])
    return _unsqueeze(combine(list(tensors)), dim)


def _pack(flow: Flow, *_: Any, **__: Any) -> Flow:
    return flow


def _unpack(flow: Flow, *_: Any, **__: Any) -> tuple[Flow, Flow]:
    return flow, Flow(uniform=True)


_RULES: dict[str, Callable[..., Any]] = {
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "permute": _permute,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "getitem": _get_item,
    "cat": _concatenate,
    "concat": _concatenate,
    "stack": _stack,
    "interpolate": _interpolate,
    "pad": _pad,
    "pack_padded_sequence": _pack,
    "pad_packed_sequence": _unpack,
}
