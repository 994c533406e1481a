"""Kinds of layers: the only place that defines what counts as a convolution, a normalisation layer or a statistic."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fl_lightning.core.state import StateLayout

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


def statistics_entries(model: nn.Module, layout: StateLayout) -> tuple[list[str], list[str]]:
    """Return the names of the means and variances of a model's normalisation layers: FedDNA's statistical parameters.

    They are the running means and variances, such as BatchNorm's. LayerNorm keeps none, although the paper includes
    it, so in a model without running statistics its bias and weight take their place. Both lists are empty if the model
    has neither.
    """
    running = (nn.Module, "running_mean", "running_var", layout.statistics)
    layer_norm = (nn.LayerNorm, "bias", "weight", layout.parameters)
    for kind, mean, var, there in (running, layer_norm):
        layers = [f"{name}." if name else "" for name, layer in model.named_modules() if isinstance(layer, kind)]
        layers = [layer for layer in layers if layer + mean in there and layer + var in there]
        if layers:
            return [layer + mean for layer in layers], [layer + var for layer in layers]
    return [], []
