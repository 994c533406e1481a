"""A function of tensors, recorded as a sequence of operations."""

from collections.abc import Callable
from typing import Any

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


def _tidy(recording: GraphModule, nodes: list[Node]) -> None:
    """Let later operations use what an equal, earlier one has computed."""
    first: dict[Any, Node] = {}
    for node in nodes:
        same = _unchanged(node) or first.setdefault(repr((node.target, node.args, node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            recording.graph.erase_node(node)
    recording.recompile()


def _unchanged(node: Node) -> Node | None:
    """Return the first argument of an operation that does nothing to it."""
    if node.target not in _RESHAPING:
        return None
    argument = node.args[0]
    assert isinstance(argument, Node)
    return argument if argument.meta["val"].shape == node.meta["val"].shape else None
