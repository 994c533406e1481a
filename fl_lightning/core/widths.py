"""Changing the widths of a model's layers."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd


def resize(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give the layers of a model the widths of a state. The values are not copied: load the state afterwards.

    The parameters stay the same objects, so an optimiser keeps them.
    """
    for prefix, module in model.named_modules():
        changed = False
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            target = state.get(f"{prefix}.{name}" if prefix else name)
            if target is not None and target.shape != tensor.shape:
                tensor.data = tensor.new_zeros(target.shape)
                changed = True
        if changed:
            _update_attributes(module)


def _update_attributes(module: nn.Module) -> None:
    """Make a layer's attributes agree with the widths of its tensors."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvNd):
        _update_convolution(module)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.RNNBase):
        module.input_size = module.get_parameter("weight_ih_l0").shape[1]
        if not module.proj_size:
            module.hidden_size = module.get_parameter("weight_hh_l0").shape[1]
        module.flatten_parameters()
    elif isinstance(module, _NormBase):
        module.num_features = len(next(value for value in (module.weight, module.running_mean) if value is not None))
    elif isinstance(module, nn.GroupNorm):
        module.num_channels = len(module.weight)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.normalized_shape = tuple(module.weight.shape)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _update_convolution(module: _ConvNd) -> None:
    first, second = module.weight.shape[:2]
    if module.groups == 1:
        module.in_channels, module.out_channels = (first, second) if module.transposed else (second, first)
    else:  # depthwise
        copies = module.out_channels // module.in_channels
        module.in_channels = module.groups = first // copies
        module.out_channels = first
