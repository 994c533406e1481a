"""Kinds of layers: the one table that says what counts as a convolution or a normalisation layer."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

#: layers that rescale activations, with or without running statistics
NORMALISATION: tuple[type[nn.Module], ...] = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

#: the name of a kind, as it appears in tags, to the classes that belong to it
LAYER_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "convolution": (_ConvNd,),
    "fully_connected": (nn.Linear,),
    "normalisation": NORMALISATION,
}


def is_normalisation(layer: nn.Module) -> bool:
    """Return whether a module is a normalisation layer."""
    return isinstance(layer, NORMALISATION)
