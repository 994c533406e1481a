"""Replacing the normalisation layers of a network. FedDNA's table calls the choice ``group`` Fed-GN."""

from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_lightning.core.errors import MisconfigurationError

Normalisation = Literal["batch", "group", "layer", "none"]

#: Number of groups in Fed-GN.
GROUPS = 2


def with_normalisation(net: nn.Module, kind: Normalisation) -> nn.Module:
    """Replace every BatchNorm and LayerNorm of a network in place, and return it. Learnt scales and shifts are kept.

    Args:
        net: any network; one without such layers stays unchanged.
        kind: ``batch`` leaves the network unchanged; ``group`` is GroupNorm with two groups; ``layer`` normalises each
            sample over all channels (one group); ``none`` removes the layers.
    """
    if kind not in ("batch", "group", "layer", "none"):
        raise MisconfigurationError(f"normalisation={kind!r}: set normalisation to batch, group, layer or none")
    if kind == "batch":
        return net
    if isinstance(net, _BatchNorm):
        return nn.Identity() if kind == "none" else _grouped(net, kind)
    if isinstance(net, nn.LayerNorm) and kind != "layer":
        return nn.Identity() if kind == "none" else _grouped_vectors(net)
    for name, child in net.named_children():
        setattr(net, name, with_normalisation(child, kind))
    return net


def _grouped(norm: _BatchNorm, kind: Normalisation) -> nn.Module:
    """Return the GroupNorm that replaces a BatchNorm."""
    groups = GROUPS if kind == "group" else 1
    if norm.num_features % groups:
        raise MisconfigurationError(
            f"normalisation=group with {groups} groups, but a layer has {norm.num_features} channels:"
            " set normalisation to layer"
        )
    return _with_parameters(nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine), norm)


def _grouped_vectors(norm: nn.LayerNorm) -> nn.Module:
    """Return the GroupNorm that replaces a LayerNorm."""
    # The channels of a subclass, such as torchvision's LayerNorm2d, may not be in the last dimension.
    if type(norm) is not nn.LayerNorm or len(norm.normalized_shape) != 1 or norm.normalized_shape[0] % GROUPS:
        raise MisconfigurationError(
            f"normalisation=group with {GROUPS} groups, but {norm} does not normalise an even number of values in the"
            " last dimension: set normalisation to batch, which leaves it unchanged"
        )
    return _with_parameters(_VectorGroupNorm(GROUPS, norm.normalized_shape[0], norm.eps, norm.elementwise_affine), norm)


def _with_parameters(new: nn.GroupNorm, old: _BatchNorm | nn.LayerNorm) -> nn.Module:
    """Give a new layer the scale and shift of the old one."""
    new.weight, new.bias = old.weight, old.bias
    return new


class _VectorGroupNorm(nn.GroupNorm):
    """A GroupNorm that normalises each vector separately, with the channels in the last dimension as in LayerNorm."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(-1, self.num_channels)).view_as(input)
