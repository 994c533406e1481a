"""A network as ``torch.fx`` traces it: which entries of which tensors belong to the same units."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fl_lightning.aggregation.fedma.layers import has_own_stage, rule_for
from fl_lightning.aggregation.fedma.operations import (
    Stack,
    apply_function,
    apply_module,
    flows_in,
    treats_units_alike,
)
from fl_lightning.aggregation.fedma.units import Axis, CannotFollowError, Flow, merge_axes, refuse


@dataclass
class Tie:
    """The units along the dimensions of one tensor of the state.

    Args:
        stage: number of the layer that the tensor belongs to, in the order of the calls.
        axes: the units along its dimensions; entries along other dimensions keep their places.
    """

    stage: int
    axes: dict[int, Axis]


def trace(model: nn.Module) -> fx.Graph:
    """Return the graph of a model's ``forward``.

    Raises:
        MisconfigurationError: if ``torch.fx`` cannot trace it.
    """
    tracer = fx.Tracer(autowrap_functions=(pack_padded_sequence, pad_packed_sequence))
    if tracer.is_leaf_module(model, ""):  # the model is a single layer of torch
        graph = fx.Graph()
        graph.output(graph.call_module("", (graph.placeholder("inputs"),)))
        return graph
    with _in_training(model):
        try:
            return tracer.trace(model)
        except Exception as error:  # a trace runs the user's forward, which may fail in any way
            reason = " ".join(str(error).split())[:200]
            raise refuse(
                f"torch.fx cannot trace {type(model).__name__}.forward ({reason})",
                "write it without branches that depend on tensors",
            ) from error


class GraphReader:
    """Follows units through the graph of a model.

    Args:
        model: the model.
        fixed: names of tensors whose units keep their places, because clients do not train them.

    Attributes:
        ties: the units of each tensor of the state that the model uses, by name.
        layers: the layers with weights, in the order of their calls: one stage each.
    """

    def __init__(self, model: nn.Module, fixed: Collection[str] = ()) -> None:
        self._model = model
        self._state = dict(model.state_dict(keep_vars=True))
        self._modules = dict(model.named_modules(remove_duplicate=False))
        #: the names of tensors, by identity; a tensor with several names is kept under the first
        self._names: dict[int, str] = {}
        for name, value in self._state.items():
            self._names.setdefault(id(value), name)
        self.ties: dict[str, Tie] = {}
        self.layers: list[str] = []
        self._stages: dict[int, int] = {}
        self._outputs: dict[str, list[Flow]] = {}
        self._unknown: dict[str, str] = {}
        values: dict[fx.Node, Any] = {}
        for node in trace(model).nodes:
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            try:
                values[node] = self._follow(node, args, kwargs)
            except CannotFollowError as problem:
                values[node] = self._stop(node, flows_in([args, kwargs]), str(problem))
        for name in fixed:
            if name in self.ties:
                self._anchor(name, f"{name} is frozen")

    def _follow(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "placeholder":
            return Flow()
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "output":
            raise CannotFollowError("it is the output of the model")
        if node.op == "call_module":
            return self._call(str(node.target), args, kwargs)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if treats_units_alike(name):
            args, kwargs = self._with_parameters(args, kwargs)
        result = apply_function(name, args, kwargs)
        stage = max((flow.stage for flow in flows_in([args, kwargs])), default=-1)
        return replace(result, stage=stage, source=None) if isinstance(result, Flow) and not result.uniform else result

    def _attribute(self, path: str) -> Flow:
        value: Any = self._model
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            return Flow()
        name = self._names.get(id(value))
        if name is not None:  # used by the layer that was called last, or before the first
            self.ties.setdefault(name, Tie(max(0, len(self.layers) - 1), {}))
        return Flow(rank=value.dim(), source=name)

    def _call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self._modules[path]
        flows = flows_in([args, kwargs])
        flow = args[0] if args and isinstance(args[0], Flow) else next(iter(flows), Flow())
        own = [*module.named_parameters(), *module.named_buffers()]
        rule = rule_for(module)
        if not own and rule is None:
            result = apply_module(module, flow) if len(flows) == 1 else None
            if result is None:
                raise CannotFollowError("FedMA does not know this kind of layer")
            return result
        stage = self._stage_of(path, module, flows)
        tensors = [self._names[id(value)] for _, value in own if id(value) in self._names]
        for name in tensors:
            self.ties.setdefault(name, Tie(stage, {}))
        try:
            if rule is None or len(flows) > 1:
                raise CannotFollowError("FedMA does not know this kind of layer")
            result, axes = rule(module, flow)
            self._tie(dict(own), axes)
        except CannotFollowError as problem:
            for name in tensors:
                self._anchor(name, f"{path} reads them")
            if path in self.layers:
                self._unknown[path] = f"{path} cannot be followed: {problem}"
            raise
        if self.layers and path == self.layers[stage]:
            self._outputs.setdefault(path, flows_in(result))
        return _at_stage(result, stage)

    def anchored(self) -> dict[str, str]:
        """Return the layers whose units keep their places, with the reason."""
        reasons = {
            layer: [stretch.units.anchored for flow in flows for stretch in flow.axis or ()]
            for layer, flows in self._outputs.items()
        }
        found = {layer: reason for layer, some in reasons.items() for reason in some[:1] if reason is not None}
        return {layer: reason for layer in self.layers for reason in [(found | self._unknown).get(layer)] if reason}

    def _stage_of(self, path: str, module: nn.Module, flows: list[Flow]) -> int:
        """Return a layer's stage: a new one, the stage of its first call, or the stage of the layer before it."""
        if id(module) not in self._stages:
            if has_own_stage(module):
                self._stages[id(module)] = len(self.layers)
                self.layers.append(path)
            else:
                self._stages[id(module)] = max([0, *(flow.stage for flow in flows)])
        return self._stages[id(module)]

    def _tie(self, own: Mapping[str, Tensor], axes: Mapping[tuple[str, int], Axis | None]) -> None:
        """Note the units along the dimensions of a layer's tensors. A tensor that is used twice ties them together."""
        for (kind, dim), axis in axes.items():
            if own.get(kind) is None:
                continue
            name = self._names.get(id(own[kind]))
            if name is None:  # a buffer that is not part of the state
                raise CannotFollowError(f"its {kind} is not part of the state")
            known = self.ties[name].axes
            if axis is None:
                for stretch in known.pop(dim, ()):
                    stretch.units.anchor(f"{name} also reads values that are tied to their places")
                known[dim] = ()
            elif dim not in known:
                known[dim] = axis
            elif known[dim] == ():
                for stretch in axis:
                    stretch.units.anchor(f"{name} also reads values that are tied to their places")
            else:
                merge_axes([known[dim], axis])

    def _with_parameters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Tie a parameter that is added to units, or multiplied with them, to these units."""
        flows = flows_in([args, kwargs])
        units = max((flow for flow in flows if flow.axis is not None), key=lambda flow: flow.width, default=None)
        stage = max([0, *(flow.stage for flow in flows)])

        def tied(flow: Any) -> Any:
            if not isinstance(flow, Flow) or flow.source is None:
                return flow
            shape = self._state[flow.source].shape
            if units is None:
                return replace(flow, source=None, stage=stage)
            if len(shape) < -units.dim or shape[units.dim] == 1:
                return Flow(uniform=True, stage=stage)
            axis = units.read(shape[units.dim], units.dim)
            self._tie({"it": self._state[flow.source]}, {("it", len(shape) + units.dim): axis})
            return replace(units, stage=stage)

        return tuple(tied(arg) for arg in args), {key: tied(value) for key, value in kwargs.items()}

    def _stop(self, node: fx.Node, flows: list[Flow], problem: str) -> Flow:
        """Anchor the units that reach an operation. Its result has no units any more."""
        name = node.name if node.op != "call_module" else str(node.target)
        stage = max((flow.stage for flow in flows), default=-1)
        for flow in flows:
            flow.anchor(f"they reach {name}, and {problem}")
            if flow.source is not None:
                self._anchor(flow.source, f"they reach {name}")
        own = self._stages.get(id(self._modules.get(str(node.target)))) if node.op == "call_module" else None
        return Flow(stage=stage if own is None else own)

    def _anchor(self, name: str, reason: str) -> None:
        for axis in self.ties[name].axes.values():
            for stretch in axis:
                stretch.units.anchor(reason)


def _at_stage(result: Any, stage: int) -> Any:
    if isinstance(result, Flow):
        return replace(result, stage=stage, source=None)
    if isinstance(result, Stack):
        return Stack(tuple(replace(flow, stage=stage) for flow in result.flows))
    return tuple(_at_stage(part, stage) for part in result)


@contextmanager
def _in_training(model: nn.Module) -> Iterator[None]:
    """Put all layers into training mode, in which clients use them."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = True
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
