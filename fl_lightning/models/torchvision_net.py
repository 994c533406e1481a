"""torchvision's networks, with a choice of classes, stem and pre-trained weights."""

import re
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from typing import Literal
from urllib.parse import urlparse

import torch
import torchvision.models
from torch import Tensor, nn
from torchvision.models import DenseNet, MobileNetV2, ResNet, WeightsEnum, get_model, get_model_weights, list_models

from fl_lightning.core.errors import MisconfigurationError

_CANNOT_READ = (OSError, EOFError, RuntimeError, UnpicklingError)


class TorchvisionNet(nn.Module):
    """One of torchvision's networks for images. Calling this class returns torchvision's own module.

    Args:
        name: torchvision's name for the network: ``resnet18``, ``resnet50``, ``densenet121``, ``mobilenet_v2``, ...
        num_classes: width of the last layer. If ``weights`` have a different number of classes, the layer keeps its
            random initialisation.
        cifar_stem: whether the first layers shrink images four times less, for small images. A ResNet or DenseNet then
            begins with a 3 × 3 convolution without stride and without pooling; in a MobileNetV2, the first two strides
            of 2 become 1.
        weights: pre-trained weights: ``DEFAULT``, another of torchvision's names such as ``IMAGENET1K_V2``, or the path
            of a ``.pth`` file with a state dict.
    """

    # A wrapper module would change the names of torchvision's tensors.
    def __new__(  # type: ignore[misc]
        cls, name: str, num_classes: int = 10, cifar_stem: bool = False, weights: str | None = None
    ) -> nn.Module:
        if name not in list_models(torchvision.models):
            raise MisconfigurationError(
                f"name={name}, but torchvision has no such classifier: set name to one of"
                " torchvision.models.list_models(), such as resnet18, resnet50, densenet121 or mobilenet_v2"
            )
        net: nn.Module = get_model(name, num_classes=num_classes)
        if cifar_stem:
            _use_cifar_stem(net, name)
        if weights is not None:
            state = _with_head_of(net, _read(name, weights))
            try:
                net.load_state_dict(state)
            except RuntimeError as error:
                problem = shorten(str(error).split(":", 1)[1], 200)
                raise MisconfigurationError(
                    f"weights={weights} do not fit {name} with cifar_stem={str(cifar_stem).lower()} ({problem}):"
                    " change cifar_stem, or use other weights"
                ) from error
        return net


def _use_cifar_stem(net: nn.Module, name: str) -> None:
    """Change the first layers of a network so that they shrink images four times less."""
    if isinstance(net, ResNet):
        net.conv1 = _without_stride(net.conv1, "fan_out")
        net.maxpool = nn.Identity()
    elif isinstance(net, DenseNet):
        net.features.conv0 = _without_stride(net.features.conv0, "fan_in")
        net.features.pool0 = nn.Identity()
    elif isinstance(net, MobileNetV2):
        strided = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)]
        for layer in strided[:2]:
            layer.stride = (1, 1)
    else:
        raise MisconfigurationError(
            f"cifar_stem=true, but {name} is not a ResNet, DenseNet or MobileNetV2: set cifar_stem to false"
        )


def _without_stride(first: nn.Conv2d, mode: Literal["fan_in", "fan_out"]) -> nn.Conv2d:
    """Return a 3 × 3 convolution that replaces the first one, initialised as torchvision does for this network."""
    convolution = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode=mode, nonlinearity="relu")
    return convolution


def _read(name: str, weights: str) -> dict[str, Tensor]:
    """Read a state dict, from torchvision or from a file."""
    offered = get_model_weights(name).__members__
    if weights in offered:
        state = _fetch(offered[weights])
    elif Path(weights).is_file():
        try:
            state = torch.load(weights, map_location="cpu", weights_only=True)
        except _CANNOT_READ as error:
            raise _broken(weights, error) from error
    else:
        raise MisconfigurationError(
            f"weights={weights} is neither a file nor the name of weights for {name}: set weights to"
            f" {', '.join(offered)} or to the path of a .pth file"
        )
    # torchvision's files for DenseNet use old names: norm.1 instead of norm1.
    return {re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", key): value for key, value in state.items()}


def _fetch(weights: WeightsEnum) -> dict[str, Tensor]:
    """Read weights that torchvision offers, and download them if necessary."""
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    try:
        return weights.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    except _CANNOT_READ as error:
        if file.is_file():
            raise _broken(file, error) from error
        raise MisconfigurationError(
            f"weights={weights.name}, but {file} is missing and cannot be downloaded ({shorten(str(error), 100)}):"
            f" download {weights.url} on another machine and put it there, or set weights to its path"
        ) from error


def _broken(file: str | Path, error: Exception) -> MisconfigurationError:
    """Return the error for a broken file."""
    return MisconfigurationError(
        f"{file} is not a state dict, or is truncated ({shorten(str(error), 100)}): delete it and download it again"
    )


def _with_head_of(net: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state in which the network's own last layer replaces one with a different number of classes."""
    head = [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)][-1:]
    for key, own in net.state_dict().items():
        if key.rpartition(".")[0] in head and key in state and len(state[key]) != len(own):
            state[key] = own
    return state
