"""The order in which the layers of a model are matched, and how its tensors change when units change places."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fl_lightning.aggregation.fedma.graph import GraphReader
from fl_lightning.aggregation.fedma.units import Axis, Stretch, Units, refuse
from fl_lightning.core.state import StateLayout


@dataclass(frozen=True)
class Part:
    """A stretch of a tensor's dimension: each unit of a group in turn has ``block`` adjacent entries.

    Args:
        group: number of the group; None if the entries keep their places.
        block: entries per unit, or all entries of a stretch without a group.
    """

    group: int | None
    block: int


#: the stretches of each dimension of a tensor that has units of a group
Parts = dict[int, list[Part]]


@dataclass
class Stage:
    """A layer with weights, together with the normalisation that follows it.

    Args:
        layer: name of the layer.
        tensors: names of its parameters, then of its statistics.
        groups: the groups whose units are matched in this stage, in this order.
        head: the parameters of the last layer, if its rows are the model's outputs and so keep their places.
    """

    layer: str
    tensors: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    head: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """The stages of a model, and the groups of units that change places together.

    Args:
        stages: one per layer with weights, in the order of the calls.
        parts: where the units of each group are, by tensor. Groups are numbered in the order in which they are matched.
        widths: number of units of each group.
        rigid: why a group cannot get more units, by group.
        anchored: why the units of a layer keep their places, by layer; the output layer is left out.
    """

    stages: list[Stage]
    parts: dict[str, Parts] = field(default_factory=dict)
    widths: list[int] = field(default_factory=list)
    rigid: dict[int, str] = field(default_factory=dict)
    anchored: dict[str, str] = field(default_factory=dict)

    def from_stage(self, stage: int) -> list[str]:
        """Return the tensors of a stage and of all later ones."""
        return [name for later in self.stages[stage:] for name in later.tensors]

    def telling(self, stage: Stage, group: int) -> list[str]:
        """Return the tensors that tell the units of a group apart: any other units in them are already matched."""
        names = []
        for name in stage.tensors:
            groups = {dim: {part.group for part in parts} for dim, parts in self.parts[name].items()}
            dims = [dim for dim, found in groups.items() if group in found]
            others = [number for dim, found in groups.items() if dim not in dims for number in found]
            if len(dims) == 1 and all(number is None or number < group for number in others):
                names.append(name)
        return names

    def rows(self, values: Mapping[str, Tensor], names: Iterable[str], group: int, widths: Sequence[int]) -> Tensor:
        """Return one row per unit of a group: all entries of these tensors that belong to the unit."""
        columns = []
        for name in names:
            for dim, parts in self.parts[name].items():
                offset = 0
                for part in parts:
                    length = part.block * (1 if part.group is None else widths[part.group])
                    if part.group == group:
                        stretch = values[name].narrow(dim, offset, length).movedim(dim, 0)
                        columns.append(stretch.reshape(widths[group], -1))
                    offset += length
        return torch.cat(columns, dim=1)

    def move(self, name: str, value: Tensor, group: int, places: Tensor, widths: Sequence[int], width: int) -> Tensor:
        """Return a tensor after the units of a group moved to new places. Places that stay empty are 0.

        Args:
            name: name of the tensor.
            value: the tensor.
            group: number of the group.
            places: new place of each unit.
            widths: number of units of each group in ``value``.
            width: number of places.
        """
        for dim, parts in self.parts[name].items():
            if all(part.group != group for part in parts):
                continue
            sources, offset = [], 0
            for part in parts:
                units = 1 if part.group is None else widths[part.group]
                origin = torch.arange(units, device=value.device)
                if part.group == group:
                    origin = torch.full((width,), -1, device=value.device)
                    origin[places] = torch.arange(units, device=value.device)
                entries = offset + origin[:, None] * part.block + torch.arange(part.block, device=value.device)
                sources.append(torch.where(origin[:, None] < 0, -1, entries).flatten())
                offset += units * part.block
            source = torch.cat(sources)
            value = value.index_select(dim, source.clamp(min=0))
            if width > len(places):
                value = value.index_fill(dim, (source < 0).nonzero().flatten(), 0)
        return value


def read_plan(model: nn.Module, layout: StateLayout) -> Plan:
    """Return in which order a model's layers are matched, and which units change places together.

    Raises:
        MisconfigurationError: if ``torch.fx`` cannot trace the model, or nothing in it can be matched.
    """
    reader = GraphReader(model, layout.rest)
    name = type(model).__name__
    unused = next((entry for entry in layout.parameters if entry not in reader.ties), None)
    if unused is not None:
        raise refuse(f"{name}.forward does not use {unused}", "use it there, or freeze it")
    if not reader.layers:
        raise refuse(f"{name} has no layer with weights", "use a net that has one")
    plan = Plan([Stage(layer) for layer in reader.layers])
    for entry in [*layout.parameters, *layout.statistics]:
        if entry in reader.ties:
            plan.stages[reader.ties[entry].stage].tensors.append(entry)
    numbers: dict[Units, int] = {}
    for stage in plan.stages:
        for entry in stage.tensors:
            axes = {dim: axis for dim, axis in sorted(reader.ties[entry].axes.items()) if _moves(axis)}
            for axis in axes.values():
                _enter_groups(axis, plan, stage, numbers)
            plan.parts[entry] = {dim: [_part(stretch, numbers) for stretch in axis] for dim, axis in axes.items()}
    _find_head(plan, model)
    plan.anchored = {layer: reason for layer, reason in reader.anchored().items() if layer != reader.layers[-1]}
    if len(plan.stages) > 1 and not plan.widths:
        reason = next(iter(plan.anchored.values()), "no layer has units of its own")
        raise refuse(f"all units of {name} keep their places, because {reason}", "use another net")
    return plan


def _moves(axis: Axis) -> bool:
    return any(stretch.units.anchored is None for stretch in axis)


def _enter_groups(axis: Axis, plan: Plan, stage: Stage, numbers: dict[Units, int]) -> None:
    """Number the groups of an axis that no earlier tensor has."""
    for stretch in axis:
        units = stretch.units.root
        if units.anchored is None and units not in numbers:
            numbers[units] = len(plan.widths)
            stage.groups.append(numbers[units])
            plan.widths.append(units.size)
            if units.rigid is not None:
                plan.rigid[numbers[units]] = units.rigid


def _part(stretch: Stretch, numbers: Mapping[Units, int]) -> Part:
    number = numbers.get(stretch.units.root)
    return Part(number, stretch.length if number is None else stretch.block)


def _find_head(plan: Plan, model: nn.Module) -> None:
    stage = plan.stages[-1]
    last = model.get_submodule(stage.layer)
    if isinstance(last, nn.Linear | _ConvNd) and not isinstance(last, _ConvTransposeNd):
        own = [name for name in stage.tensors if name.rpartition(".")[0] == stage.layer]
        if not any(0 in plan.parts[name] for name in own):
            stage.head = own
