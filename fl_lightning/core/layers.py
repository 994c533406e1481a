"""Kinds of layers: the only table that defines what counts as a convolution or a normalisation layer."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

#: layers that rescale activations, with or without running statistics
NORMALISATION: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

#: the classes that belong to each kind, by the kind's name in tags
LAYER_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "convolution": (_ConvNd,),
    "fully_connected": (nn.Linear,),
    "normalisation": NORMALISATION,
}


def is_normalisation(layer: nn.Module) -> bool:
    """Return whether a module is a normalisation layer."""
    return isinstance(layer, NORMALISATION)
