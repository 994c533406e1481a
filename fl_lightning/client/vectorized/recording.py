"""A function of tensors, recorded as a sequence of operations."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

_ATEN = torch.ops.aten
#: operations that return their first argument if they leave its shape as it is
_RESHAPING = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.expand.default, _ATEN.alias.default)


def record(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """Run a function and return the operations that it called, without repetitions of earlier ones.

    ``torch.vmap`` leaves many repetitions behind: half of the 83 operations in a small classifier's training step.

    Args:
        function: a function of nested tensors that draws no random numbers.
        arguments: what to call it with. The recording can be replayed with arguments of the same shapes.
    """
    recording = make_fx(function)(*arguments)
    nodes = [node for node in recording.graph.nodes if node.op == "call_function"]
    # An operation that changes a tensor in place makes equal calls before and after it differ.
    if all(isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable for node in nodes):
        _tidy(recording, nodes)
    return recording


def move_parameters(recording: GraphModule, count: int) -> None:
    """Let a recorded step move its parameters by gradient descent, instead of returning their gradients.

    A gradient that is a product of matrices is added to its parameter while it is computed. It is never written to
    memory, which takes as long as computing it.

    Args:
        recording: takes the parameters first and the learning rate, with a minus sign, last; returns the gradients
            first.
        count: the number of parameters.
    """
    graph = recording.graph
    inputs, output = graph.find_nodes(op="placeholder"), graph.output_node()
    results = cast(list[Node], output.args[0])
    moved, settings = [], {"alpha": inputs[-1]}
    with graph.inserting_before(output):
        for parameter, gradient in zip(inputs, results[:count], strict=False):
            if gradient.target is _ATEN.bmm.default and len(gradient.users) == results.count(gradient) == 1:
                move = graph.call_function(_ATEN.baddbmm_.default, (parameter, *gradient.args), settings)
            else:
                move = graph.call_function(_ATEN.add_.Tensor, (parameter, gradient), settings)
            moved.append(move)
    output.args = ([*moved, *results[count:]],)
    for gradient in results[:count]:
        if not gradient.users:
            graph.erase_node(gradient)
    recording.recompile()


def _tidy(recording: GraphModule, nodes: list[Node]) -> None:
    """Let later operations use what an equal, earlier one has computed."""
    first: dict[Any, Node] = {}
    for node in nodes:
        same = _unchanged(node) or first.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
    for node in reversed(nodes):
        if not node.users:
            recording.graph.erase_node(node)
    recording.recompile()


def _unchanged(node: Node) -> Node | None:
    """Return what an operation starts from if it returns the same, alone or together with the one before it."""
    argument = node.args[0] if node.args else None
    if not isinstance(argument, Node):
        return None
    if node.target in _RESHAPING and argument.meta["val"].shape == node.meta["val"].shape:
        return argument
    if node.target is _ATEN.mul.Scalar and node.args[1] == 1 and argument.meta["val"].dtype == node.meta["val"].dtype:
        return argument
    if node.target is argument.target is _ATEN.transpose.int and set(node.args[1:]) == set(argument.args[1:]):
        before = argument.args[0]
        assert isinstance(before, Node)
        return before
    return None
