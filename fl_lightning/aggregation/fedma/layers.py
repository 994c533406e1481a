"""How units enter and leave layers with weights, and which entries of which tensors belong to each unit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fl_lightning.aggregation.fedma.operations import Stack
from fl_lightning.aggregation.fedma.units import Axis, CannotFollowError, Flow, Stretch, Units

#: what a rule returns: the output, and the units along the dimensions of the layer's tensors, by name and dimension
Outcome = tuple[Any, dict[tuple[str, int], Axis | None]]

#: how many stretches of rows each unit has in a recurrent layer's weights
_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def rule_for(module: nn.Module) -> Callable[[Any, Flow], Outcome] | None:
    """Return how units pass through a layer with weights; None if FedMA does not know this kind of layer."""
    kinds: list[tuple[type[nn.Module], set[str], Callable[[Any, Flow], Outcome]]] = [
        (_ConvTransposeNd, {"weight", "bias"}, _transposed),
        (_ConvNd, {"weight", "bias"}, _convolution),
        (nn.Linear, {"weight", "bias"}, _linear),
        (nn.Embedding, {"weight"}, _embedding),
        (nn.RNNBase, set(), _recurrent),
        (_NormBase, {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}, _batch_norm),
        (nn.GroupNorm, {"weight", "bias"}, _group_norm),
        (nn.LayerNorm, {"weight", "bias"}, _layer_norm),
        (nn.RMSNorm, {"weight"}, _layer_norm),
        (nn.PReLU, {"weight"}, _prelu),
    ]
    names = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    for kind, known, rule in kinds:
        if isinstance(module, kind) and (names <= known or kind is nn.RNNBase):
            return rule
    return None


def has_own_stage(module: nn.Module) -> bool:
    """Return whether a layer with weights is matched in a stage of its own; others belong to the layer before them."""
    return not isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.PReLU)


def new_units(size: int) -> Axis:
    """Return an axis of units that no other layer has."""
    return (Stretch(Units(size)),)


def _convolution(layer: _ConvNd, flow: Flow) -> Outcome:
    spatial = len(layer.kernel_size)
    flow = flow if flow.rank is not None else replace(flow, rank=spatial + 2)
    inputs = flow.read(layer.in_channels, 1)
    rows: Axis | None = new_units(layer.out_channels)
    if layer.groups == 1:
        tensors = {("weight", 0): rows, ("weight", 1): inputs, ("bias", 0): rows}
    elif layer.groups == layer.in_channels:  # depthwise: each unit is computed from one unit
        copies = layer.out_channels // layer.in_channels
        rows = None if inputs is None else tuple(Stretch(part.units, part.block * copies) for part in inputs)
        tensors = {("weight", 0): rows, ("bias", 0): rows}
    else:
        raise CannotFollowError(f"it has {layer.groups} groups")
    return Flow(rows, -1 - spatial, spatial + 2), tensors


def _transposed(layer: _ConvTransposeNd, flow: Flow) -> Outcome:
    if layer.groups != 1:
        raise CannotFollowError(f"it has {layer.groups} groups")
    spatial = len(layer.kernel_size)
    inputs = flow.read(layer.in_channels, 1)
    rows = new_units(layer.out_channels)
    return Flow(rows, -1 - spatial, spatial + 2), {("weight", 0): inputs, ("weight", 1): rows, ("bias", 0): rows}


def _linear(layer: nn.Linear, flow: Flow) -> Outcome:
    inputs = flow.read(layer.in_features, -1)
    rows = new_units(layer.out_features)
    return Flow(rows, -1, flow.rank), {("weight", 0): rows, ("weight", 1): inputs, ("bias", 0): rows}


def _embedding(layer: nn.Embedding, flow: Flow) -> Outcome:
    if flow.axis is not None:
        raise CannotFollowError("it looks up computed numbers")
    columns = new_units(layer.embedding_dim)
    return Flow(columns, -1, None if flow.rank is None else flow.rank + 1), {("weight", 1): columns}


def _recurrent(layer: nn.RNNBase, flow: Flow) -> Outcome:
    gates, directions = _GATES[layer.mode], 2 if layer.bidirectional else 1
    inputs = flow.read(layer.input_size, -1)
    tensors: dict[tuple[str, int], Axis | None] = {}
    hidden: list[Flow] = []
    cells: list[Flow] = []
    for number in range(layer.num_layers):
        outputs: Axis = ()
        for direction in range(directions):
            end = f"l{number}{'_reverse' if direction else ''}"
            cell = new_units(layer.hidden_size)
            state = new_units(layer.proj_size) if layer.proj_size else cell
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                tensors[f"{name}_{end}", 0] = cell * gates
            tensors[f"weight_ih_{end}", 1] = inputs
            tensors[f"weight_hh_{end}", 1] = state
            if layer.proj_size:
                tensors |= {(f"weight_hr_{end}", 0): state, (f"weight_hr_{end}", 1): cell}
            outputs += state
            hidden.append(Flow(state, -1, 2))
            cells.append(Flow(cell, -1, 2))
            if directions * layer.num_layers > 1 or layer.proj_size:
                for part in cell + state:
                    part.units.fix_number("all layers and directions of a recurrent layer share one width")
        inputs = outputs
    assert inputs is not None
    ends = Stack(tuple(hidden))
    return (Flow(inputs, -1, 3), (ends, Stack(tuple(cells))) if layer.mode == "LSTM" else ends), tensors


def _batch_norm(layer: _NormBase, flow: Flow) -> Outcome:
    axis = flow.read(layer.num_features, 1)
    return flow, {(name, 0): axis for name in ("weight", "bias", "running_mean", "running_var")}


def _group_norm(layer: nn.GroupNorm, flow: Flow) -> Outcome:
    axis = flow.read(layer.num_channels, 1)
    if layer.num_groups not in (1, layer.num_channels):
        raise CannotFollowError(f"it normalises {layer.num_groups} groups of units separately")
    if layer.num_groups > 1 or not layer.affine:
        flow.fix_number(f"a {type(layer).__name__} has a fixed number of groups")
    return flow, {("weight", 0): axis, ("bias", 0): axis}


def _layer_norm(layer: nn.LayerNorm | nn.RMSNorm, flow: Flow) -> Outcome:
    dim = len(layer.normalized_shape) + flow.dim
    if flow.axis is None or dim < 0:  # every unit is normalised by itself
        return flow, {}
    axis = flow.read(layer.normalized_shape[dim], flow.dim)
    if not layer.elementwise_affine or dim > 0:
        flow.fix_number(f"a {type(layer).__name__} without weights has a fixed width")
    return flow, {("weight", dim): axis, ("bias", dim): axis}


def _prelu(layer: nn.PReLU, flow: Flow) -> Outcome:
    return flow, {("weight", 0): flow.read(layer.num_parameters, 1)} if layer.num_parameters > 1 else {}
