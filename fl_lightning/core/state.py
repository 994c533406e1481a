"""A model's state as flat vectors: the space in which updates are added, measured and compared.

| part of a state | what it holds                                                    | how it is aggregated   |
| --------------- | ---------------------------------------------------------------- | ---------------------- |
| parameters      | trainable tensors, including those of normalisation layers       | the algorithm decides  |
| statistics      | floating-point buffers: BatchNorm's running means and variances  | the weighted mean      |
| counters        | integer buffers: num_batches_tracked                             | the largest value      |
| the rest        | frozen parameters, boolean buffers                               | only if a client       |
|                 |                                                                  | changed it, by type    |

Flat vectors hold the first three parts. The rest is large (a frozen backbone) and seldom changes, so it is compared
instead of summed: :mod:`fl_lightning.aggregation.changed_entries`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor, nn

from fl_lightning.core.errors import MisconfigurationError

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class FlatState:
    """The three parts of a state that every client changes, each as one vector."""

    parameters: Tensor
    statistics: Tensor
    counters: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "FlatState":
        """Apply ``function`` to each of the three parts."""
        return FlatState(function(self.parameters), function(self.statistics), function(self.counters))


class StateLayout:
    """Where each tensor of a model's state is in the flat vectors.

    Args:
        model: a model whose ``state_dict`` has the same names and shapes as the states to flatten.
    """

    def __init__(self, model: nn.Module) -> None:
        entries = model.state_dict(keep_vars=True)
        self.shapes = {name: value.shape for name, value in entries.items() if isinstance(value, Tensor)}
        self.parameters: list[str] = []
        self.statistics: list[str] = []
        self.counters: list[str] = []
        self.rest: list[str] = []
        #: further names of a tensor that has several (tied weights) -> the name under which it is kept
        self.aliases: dict[str, str] = {}
        first_name: dict[int, str] = {}
        for name in self.shapes:
            value = entries[name]
            if first_name.setdefault(id(value), name) != name:
                self.aliases[name] = first_name[id(value)]
            elif isinstance(value, nn.Parameter):
                if value.requires_grad and value.is_complex():
                    raise MisconfigurationError(
                        f"{name} is complex, which aggregation does not support: keep its real and imaginary parts"
                        " as two parameters (torch.view_as_real)"
                    )
                (self.parameters if value.requires_grad else self.rest).append(name)
            elif value.is_floating_point():
                self.statistics.append(name)
            elif value.dtype == torch.bool or value.is_complex():
                self.rest.append(name)
            else:
                self.counters.append(name)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """The names of the parameters of each layer, with weight and bias together."""
        layers: dict[str, list[str]] = {}
        for name in self.parameters:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        return layers

    def flatten(
        self, state: Mapping[str, Tensor], dtype: torch.dtype | None = None, out: FlatState | None = None
    ) -> FlatState:
        """Copy a state into three vectors, either those of ``out`` or new ones.

        New parameters and statistics are of type ``dtype``, by default the state's own type.
        """
        if out is not None:
            parts = (
                (self.parameters, out.parameters),
                (self.statistics, out.statistics),
                (self.counters, out.counters),
            )
            for names, vector in parts:
                copy_into(vector, [state[name] for name in names])
            return out
        return FlatState(
            concatenate(state, self.parameters, dtype),
            concatenate(state, self.statistics, dtype),
            concatenate(state, self.counters, torch.int64),
        )

    def zeros(self, dtype: torch.dtype, device: torch.device) -> FlatState:
        """Return three vectors of zeros, the first two of type ``dtype``."""
        return FlatState(
            *(
                torch.zeros(sum(self.shapes[name].numel() for name in names), dtype=kind, device=device)
                for names, kind in ((self.parameters, dtype), (self.statistics, dtype), (self.counters, torch.int64))
            )
        )

    def unflatten(self, flat: FlatState, like: Mapping[str, Tensor]) -> StateDict:
        """Return a complete state dict with the values of ``flat``; ``like`` supplies the types and everything else."""
        parts = ((self.parameters, flat.parameters), (self.statistics, flat.statistics), (self.counters, flat.counters))
        views = {name: view for names, vector in parts for name, view in self.split(names, vector).items()}
        state = {}
        for name, value in like.items():
            if name in views:
                state[name] = views[name].to(value.dtype, copy=True)
            elif isinstance(value, Tensor) and name not in self.aliases:
                state[name] = value.detach().clone()
        # in the order of the model's own state
        return {name: state[self.aliases.get(name, name)] for name in like if self.aliases.get(name, name) in state}

    def split(self, names: list[str], vector: Tensor) -> StateDict:
        """Return views of ``vector`` by name, in the shapes of the model."""
        shapes = [self.shapes[name] for name in names]
        views = vector.split([shape.numel() for shape in shapes])
        return {name: view.view(shape) for name, view, shape in zip(names, views, shapes, strict=True)}


def snapshot(model: nn.Module) -> StateDict:
    """Copy a model's state; a tensor with two names is copied once."""
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    copies = {id(value): value.detach().clone() for value in state.values()}
    return {name: copies[id(value)] for name, value in state.items()}


def is_unchanged(value: Tensor, start: Tensor | None) -> bool:
    """Return whether an entry of a state is as it was at the start; ``start`` is None if it did not exist then."""
    if value is start:
        return True
    return start is not None and value.dtype == start.dtype and torch.equal(value, start)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the type for sums: float64, so that order and number of processes do not matter; float32 on Apple GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def concatenate(state: Mapping[str, Tensor], names: list[str], dtype: torch.dtype | None = None) -> Tensor:
    """Copy the named entries into one vector of type ``dtype``, by default of their own type."""
    tensors = [state[name] for name in names]
    device = next((value.device for value in tensors or state.values()), torch.device("cpu"))
    dtype = dtype or (reduce(torch.promote_types, (value.dtype for value in tensors)) if tensors else torch.float32)
    return copy_into(torch.empty(sum(value.numel() for value in tensors), dtype=dtype, device=device), tensors)


def copy_into(vector: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Fill a vector with the numbers of the tensors, one tensor after the other, and return it."""
    if tensors:
        for piece, value in zip(vector.split([value.numel() for value in tensors]), tensors, strict=True):
            piece.view(value.shape).copy_(value.detach())
    return vector


def exact_vector(state: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """Copy the named entries into one vector of the type for sums, see :func:`exact_dtype`."""
    device = next((state[name].device for name in names), torch.device("cpu"))
    return concatenate(state, names, exact_dtype(device))
