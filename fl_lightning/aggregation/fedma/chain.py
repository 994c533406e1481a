"""A model as a plain chain of layers, whose units can be permuted without changing what the model computes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.layers import is_normalisation
from fl_lightning.core.state import StateDict


@dataclass(frozen=True)
class Layer:
    """A convolution or a fully connected layer, identified by the names of its tensors in a state dict.

    Args:
        name: name of the layer.
        weight: name of the weight, whose first dimension is the output units and whose second is the inputs.
        bias: name of the bias; None if the layer has none.
    """

    name: str
    weight: str
    bias: str | None

    @property
    def tensors(self) -> list[str]:
        """The names of the layer's tensors."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def rows(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return one row per unit: its incoming weights, flattened, with its bias appended."""
        return torch.cat([state[name].reshape(len(state[name]), -1) for name in self.tensors], dim=1)

    def from_rows(self, rows: Tensor, shapes: Mapping[str, torch.Size]) -> StateDict:
        """Invert :meth:`rows`."""
        parts = rows.split([shapes[name].numel() // len(rows) for name in self.tensors], dim=1)
        return {name: part.reshape(shapes[name]) for name, part in zip(self.tensors, parts, strict=True)}


def read_chain(model: nn.Module) -> list[Layer]:
    """Return the layers of a plain chain, in the order in which they are registered.

    Modules that treat all units alike may come between them: activations, pooling, dropout, flattening. ``forward``
    cannot be checked; it must apply the layers in this order, each to the output of the previous one.

    Raises:
        MisconfigurationError: if a layer does not fit; the message names the first such layer.
    """
    chain: list[Layer] = []
    before: nn.Conv2d | nn.Linear | None = None
    owners: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, nn.Conv2d | nn.Linear):
            _check_parameters(name, own, owners)
            if isinstance(module, nn.Conv2d) and module.groups != 1:
                raise _unfit(f"{name} has {module.groups} groups", "set groups=1")
            if before is not None and not _fits(module, before):
                raise _unfit(
                    f"{name}, {module}, does not fit the output of {chain[-1].name}, {before}",
                    "register the layers in the order in which they are used, without branches",
                )
            prefix = f"{name}." if name else ""
            chain.append(Layer(name, f"{prefix}weight", f"{prefix}bias" if "bias" in own else None))
            before = module
        elif _tells_units_apart(module) or any(value.requires_grad for value in own.values()):
            raise _unfit(f"{name or 'the model itself'} is a {type(module).__name__}", "use a net without it")
    if not chain:
        raise _unfit(f"{type(model).__name__} has no such layer", "use a net made of them")
    return chain


def move_columns(weight: Tensor, places: Tensor) -> Tensor:
    """Return the weight of a layer after the units of the previous layer moved to new positions.

    The columns that read the same unit are adjacent: one after a fully connected layer, k² between convolutions, H · W
    where the output of a convolution is flattened.

    Args:
        weight: the layer's weight, of shape (units, inputs, ...).
        places: new position of each unit of the previous layer; a permutation.
    """
    blocks = weight.reshape(len(weight), len(places), -1)
    return blocks[:, places.argsort()].reshape(weight.shape)


def _check_parameters(name: str, own: Mapping[str, nn.Parameter], owners: dict[int, str]) -> None:
    for kind, value in own.items():
        if kind not in ("weight", "bias"):
            raise _unfit(f"{name} has a parameter {kind}", "use the layer without it")
        if owners.setdefault(id(value), name) != name:
            raise _unfit(f"{name} shares its {kind} with {owners[id(value)]}", "give each layer its own")
        if not value.requires_grad:
            raise _unfit(f"{name} has a frozen {kind}", "make it trainable")


def _tells_units_apart(module: nn.Module) -> bool:
    """Return whether a layer without trainable weights still treats units differently."""
    return is_normalisation(module) or isinstance(module, nn.LocalResponseNorm)


def _fits(layer: nn.Conv2d | nn.Linear, before: nn.Conv2d | nn.Linear) -> bool:
    if isinstance(layer, nn.Conv2d):
        return isinstance(before, nn.Conv2d) and layer.in_channels == before.out_channels
    if isinstance(before, nn.Conv2d):
        return layer.in_features % before.out_channels == 0
    return layer.in_features == before.out_features


def _unfit(problem: str, fix: str) -> MisconfigurationError:
    return MisconfigurationError(
        f"FedMA matches plain chains of Conv2d and Linear, but {problem}: {fix}, or use another aggregator"
    )
