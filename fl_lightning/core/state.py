"""A model's state as flat vectors, the space in which updates are added, measured and compared.

| part of a state | what                                                             | its aggregate          |
| --------------- | ---------------------------------------------------------------- | ---------------------- |
| parameters      | trainable tensors, affine weights of normalisation layers too    | the algorithm decides  |
| statistics      | floating-point buffers: BatchNorm's running means and variances  | the weighted mean      |
| counters        | integer buffers: num_batches_tracked                             | the largest value      |
| the rest        | frozen parameters, boolean buffers                               | the global value stays |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fl_lightning.core.errors import MisconfigurationError

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class FlatState:
    """The three parts of a state that clients change, each one vector."""

    parameters: Tensor
    statistics: Tensor
    counters: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "FlatState":
        """The state with ``function`` applied to each of its parts."""
        return FlatState(function(self.parameters), function(self.statistics), function(self.counters))


class StateLayout:
    """Which tensor of a model's state stands where in the flat vectors.

    Args:
        model: a model whose ``state_dict`` has the names and shapes of every state to come.
    """

    def __init__(self, model: nn.Module) -> None:
        entries = model.state_dict(keep_vars=True)
        self.shapes = {name: value.shape for name, value in entries.items() if isinstance(value, Tensor)}
        self.parameters: list[str] = []
        self.statistics: list[str] = []
        self.counters: list[str] = []
        #: other names of a tensor that stands under two names (tied weights) -> the name it is kept under
        self.aliases: dict[str, str] = {}
        first_name: dict[int, str] = {}
        for name in self.shapes:
            value = entries[name]
            if first_name.setdefault(id(value), name) != name:
                self.aliases[name] = first_name[id(value)]
            elif isinstance(value, nn.Parameter):
                if value.requires_grad and value.is_complex():
                    raise MisconfigurationError(
                        f"{name} is complex, which aggregation does not know: keep its real and imaginary part"
                        " as two parameters (torch.view_as_real)"
                    )
                if value.requires_grad:
                    self.parameters.append(name)
            elif value.is_floating_point():
                self.statistics.append(name)
            elif value.dtype != torch.bool and not value.is_complex():
                self.counters.append(name)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """The names of each layer's parameters, weight and bias together, by the layer's name."""
        layers: dict[str, list[str]] = {}
        for name in self.parameters:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        return layers

    @cached_property
    def layer_index(self) -> Tensor:
        """Of every entry of the parameter vector, the number of its layer."""
        number = {name: index for index, names in enumerate(self.layers.values()) for name in names}
        return torch.cat([torch.full((self.shapes[name].numel(),), number[name]) for name in self.parameters])

    def flatten(self, state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> FlatState:
        """Copies a state into three vectors, the first two of type ``dtype`` (by default, as they are)."""
        return FlatState(
            _concatenate(state, self.parameters, dtype),
            _concatenate(state, self.statistics, dtype),
            _concatenate(state, self.counters, torch.int64),
        )

    def unflatten(self, flat: FlatState, like: Mapping[str, Tensor]) -> StateDict:
        """A complete state dict with the values of ``flat``; types, and what ``flat`` lacks, are those of ``like``."""
        state = {name: value.detach().clone() for name, value in like.items() if isinstance(value, Tensor)}
        parts = ((self.parameters, flat.parameters), (self.statistics, flat.statistics), (self.counters, flat.counters))
        for names, vector in parts:
            for name, values in self.split(names, vector).items():
                state[name] = values.to(state[name].dtype, copy=True)
        for alias, name in self.aliases.items():
            state[alias] = state[name]
        return state

    def split(self, names: list[str], vector: Tensor) -> StateDict:
        """Views of ``vector`` by name, in the shapes of the model."""
        shapes = [self.shapes[name] for name in names]
        views = vector.split([shape.numel() for shape in shapes])
        return {name: view.view(shape) for name, view, shape in zip(names, views, shapes, strict=True)}


def exact_dtype(device: torch.device) -> torch.dtype:
    """The type to sum in: float64, so that neither order nor number of processes shows; Apple's GPUs lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _concatenate(state: Mapping[str, Tensor], names: list[str], dtype: torch.dtype | None) -> Tensor:
    if not names:
        device = next((value.device for value in state.values()), torch.device("cpu"))
        return torch.zeros(0, dtype=dtype or torch.float32, device=device)
    return torch.cat([state[name].detach().reshape(-1).to(dtype or state[name].dtype) for name in names])
