"""Which normalisation a network uses, as a choice: what FedDNA's table calls Fed-GN is ``group``."""

from typing import Literal

from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

Normalisation = Literal["batch", "group", "layer", "none"]

#: of Fed-GN
GROUPS = 2


def with_normalisation(net: nn.Module, kind: Normalisation) -> nn.Module:
    """The network with every BatchNorm replaced, in place.

    Args:
        net: any network; one that has no BatchNorm stays as it is.
        kind: ``batch`` leaves it alone; ``group`` is GroupNorm with two groups; ``layer`` normalises each sample over
            all channels (one group); ``none`` drops the layers.
    """
    if kind not in ("batch", "group", "layer", "none"):
        raise MisconfigurationException(f"normalisation={kind!r} is not one of batch, group, layer, none")
    if kind == "batch":
        return net
    if isinstance(net, nn.modules.batchnorm._BatchNorm):
        return _replacement(net, kind)
    for name, child in net.named_children():
        setattr(net, name, with_normalisation(child, kind))
    return net


def _replacement(norm: nn.modules.batchnorm._BatchNorm, kind: Normalisation) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    groups = GROUPS if kind == "group" else 1
    if norm.num_features % groups:
        raise MisconfigurationException(
            f"normalisation=group with {groups} groups, but a layer has {norm.num_features} channels:"
            " set normalisation to layer"
        )
    return nn.GroupNorm(groups, norm.num_features, eps=norm.eps, affine=norm.affine)
