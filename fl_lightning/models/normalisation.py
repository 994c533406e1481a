"""Which normalisation a network uses, as a choice: what FedDNA's table calls Fed-GN is ``group``."""

from typing import Literal

from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Normalisation = Literal["batch", "group", "layer", "none"]

#: of Fed-GN
GROUPS = 2


def with_normalisation(net: nn.Module, kind: Normalisation) -> nn.Module:
    """The network with every BatchNorm and LayerNorm replaced, in place. What they learnt to scale and shift by stays.

    Args:
        net: any network; one that has none of them stays as it is.
        kind: ``batch`` leaves it alone; ``group`` is GroupNorm with two groups; ``layer`` normalises each sample over
            all channels (one group); ``none`` drops the layers.
    """
    if kind not in ("batch", "group", "layer", "none"):
        raise MisconfigurationException(f"normalisation={kind!r} is not one of batch, group, layer, none")
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
    groups = GROUPS if kind == "group" else 1
    if norm.num_features % groups:
        raise MisconfigurationException(
            f"normalisation=group with {groups} groups, but a layer has {norm.num_features} channels:"
            " set normalisation to layer"
        )
    return _take_over(nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine), norm)


def _grouped_vectors(norm: nn.LayerNorm) -> nn.Module:
    # A subclass, such as torchvision's LayerNorm2d, may see its channels elsewhere than in the last dimension.
    if type(norm) is not nn.LayerNorm or len(norm.normalized_shape) != 1 or norm.normalized_shape[0] % GROUPS:
        raise MisconfigurationException(
            f"normalisation=group with {GROUPS} groups, but {norm} is not over an even number of values in the last"
            " dimension: set normalisation to batch, which leaves it as it is"
        )
    return _take_over(_VectorGroupNorm(GROUPS, norm.normalized_shape[0], norm.eps, norm.elementwise_affine), norm)


def _take_over(new: nn.GroupNorm, norm: _BatchNorm | nn.LayerNorm) -> nn.Module:
    new.weight, new.bias = norm.weight, norm.bias
    return new


class _VectorGroupNorm(nn.GroupNorm):
    """GroupNorm in the place of LayerNorm: the channels are the last dimension, and each vector is on its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(-1, self.num_channels)).view_as(input)
