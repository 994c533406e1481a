"""The models of many clients, stacked along a first dimension."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from fl_lightning.client.callback import ClientCallback
from fl_lightning.client.vectorized.batches import Group
from fl_lightning.client.vectorized.step import ClientStep
from fl_lightning.core.state import StateDict


class ModelStack:
    """The parameters and buffers of many clients, one row per client.

    Args:
        module: a copy of the global model, for the names of its tensors and for tensors that are not part of a state.
        trained: names of the parameters to train.
        starts: the state that each client starts from.

    Attributes:
        parameters: the parameters to train, by name.
        buffers: all buffers, and parameters that differ between clients although nobody trains them, by name.
        constants: all other parameters, which are the same for all clients and have no rows.
    """

    def __init__(self, module: nn.Module, trained: Collection[str], starts: Sequence[StateDict]) -> None:
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers = {
            name: _stack([start.get(name, value) for start in starts]) for name, value in module.named_buffers()
        }
        self.constants: StateDict = {}
        for name, _ in module.named_parameters():
            values = [start[name] for start in starts]
            if name in trained:
                self.parameters[name] = nn.Parameter(_stack(values))
            elif _all_same(values):
                self.constants[name] = values[0]
            else:
                self.buffers[name] = _stack(values)
        self._finished: dict[int, StateDict] = {}

    def take_gradients(self, step: ClientStep, group: Group) -> Tensor:
        """Compute the gradients of a group's clients and their next buffers, and return their losses."""
        parameters = {name: _rows(value.detach(), group.where) for name, value in self.parameters.items()}
        buffers = {name: _rows(value, group.where) for name, value in self.buffers.items()}
        gradients, buffers, losses = step(parameters, buffers, self.constants, group.batch, group.index)
        for name, parameter in self.parameters.items():
            if group.where is None:
                parameter.grad = gradients[name]
            else:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad[group.where] = gradients[name]
        for name, value in buffers.items():
            if group.where is None:
                self.buffers[name] = value
            else:
                self.buffers[name][group.where] = value
        return losses

    def descend(self, step: ClientStep, group: Group, rate: float) -> Tensor | None:
        """Move all clients by gradient descent and return their losses, or None if that takes a separate step."""
        if group.where is not None:
            return None
        parameters = {name: value.detach() for name, value in self.parameters.items()}
        result = step.descend(parameters, self.buffers, self.constants, group.batch, rate)
        if result is None:
            return None
        self.buffers, losses = result
        for parameter in self.parameters.values():  # an optimiser leaves parameters without a gradient where they are
            parameter.grad = None
        return losses

    def change_gradients(self, callback: ClientCallback, own: StateDict) -> None:
        """Let a callback change the gradients of all clients, given the stacked tensors that differ between them."""
        gradients = {name: value.grad for name, value in self.parameters.items() if value.grad is not None}
        parameters = {name: value.detach() for name, value in self.parameters.items()}
        dims = (0, 0, 0 if own else None)
        for name, gradient in vmap(callback.on_gradients, in_dims=dims)(gradients, parameters, own).items():
            self.parameters[name].grad = gradient

    def finish(self, rows: Sequence[int]) -> None:
        """Keep the parameters of clients that are done, because further steps of the optimiser may move them."""
        for row in rows:
            self._finished[row] = {name: value.detach()[row].clone() for name, value in self.parameters.items()}

    def state(self, row: int, names: Mapping[str, str]) -> StateDict:
        """Return a client's state.

        Args:
            row: the client's place.
            names: the names of all entries, with the names under which this stack keeps them.
        """
        rows = {name: value.detach()[row] for name, value in {**self.buffers, **self.parameters}.items()}
        state = self.constants | rows | self._finished.get(row, {})
        return {name: state[kept] for name, kept in names.items()}


def _stack(values: Sequence[Tensor]) -> Tensor:
    if _all_same(values):
        return values[0].detach().expand(len(values), *values[0].shape).clone()
    return torch.stack([value.detach() for value in values])


def _all_same(values: Sequence[Tensor]) -> bool:
    return all(value is values[0] for value in values)


def _rows(value: Tensor, where: Tensor | None) -> Tensor:
    return value if where is None else value.index_select(0, where)
