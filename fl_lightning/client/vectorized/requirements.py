"""What vectorised training cannot do: reasons that follow "Clients train one after another, because" in a message."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.training_step import training_hooks
from fl_lightning.client.callback import ClientCallback, overrides
from fl_lightning.core.layers import LAYER_KINDS

if TYPE_CHECKING:
    from fl_lightning.client.training import LocalTraining

#: optimisers that treat every entry of a parameter alike, so that they move stacked models like separate ones
_ELEMENTWISE: tuple[type[Optimizer], ...] = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
    *(optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.ASGD, optim.Rprop),
)
#: number of weights above which stacked convolutions are no faster on a CPU. With two 5 x 5 convolutions, 20 samples
#: per batch and one thread, Trainers took 1.5 times as long for 3,200 weights, and 0.98 times for 12,800.
_LARGE_CONVOLUTION = 10_000
_LIGHTNING_HOOKS = [name for name in vars(Callback) if name.startswith(("on_", "setup", "teardown"))]
#: flags of a client's Trainer that vectorised training honours
_FLAGS = ("gradient_clip_val", "gradient_clip_algorithm", "precision")
#: precisions that need neither a scaler nor weights of another type, with the type in which they multiply matrices
_PRECISIONS = {None: None, 32: None, "32": None, "32-true": None, "bf16-mixed": torch.bfloat16}


class CannotVectorizeError(Exception):
    """Raised with the reason why each client needs its own Trainer."""


def check_module(module: LightningModule) -> None:
    """Reject a module whose training is more than a function of parameters, buffers and a batch."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise CannotVectorizeError(f"{name} optimises manually")
    hooks = training_hooks(module)
    if hooks:
        raise CannotVectorizeError(f"{name} has {hooks[0]}, which only a Trainer calls")


def check_profitable(module: LightningModule) -> None:
    """Reject a module that vectorised training would not speed up: on a CPU, one with large convolutions.

    The rule depends only on the module. If measured times decided, a resumed run might train in another way.
    """
    if module.device.type != "cpu":
        return
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None) if isinstance(layer, LAYER_KINDS["convolution"]) else None
        if isinstance(weight, Tensor) and weight.numel() > _LARGE_CONVOLUTION:
            raise CannotVectorizeError(
                f"{name} has {weight.numel()} weights, and stacking large convolutions gains nothing on a CPU"
            )


def check_loader(loader: Any) -> None:
    """Reject a loader with worker processes: they load the batches of one client at a time."""
    if isinstance(loader, DataLoader) and loader.num_workers > 0:
        raise CannotVectorizeError("the source's loader has workers, which load the batches of one client at a time")


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Reject a callback that overrides hooks of Lightning."""
    for callback in callbacks:
        name = type(callback).__name__
        if not isinstance(callback, ClientCallback):
            raise CannotVectorizeError(f"{name} is a callback of Lightning, which only a Trainer calls")
        for hook in _LIGHTNING_HOOKS:
            if overrides(callback, hook):
                raise CannotVectorizeError(f"{name} has {hook}, which only a Trainer calls")


def check_flags(flags: Mapping[str, Any]) -> None:
    """Reject flags of a client's Trainer that have no counterpart."""
    defaults = inspect.signature(Trainer.__init__).parameters  # a config that was parsed has all flags
    for flag, value in flags.items():
        if flag not in _FLAGS and value != defaults[flag].default:
            raise CannotVectorizeError(f"client.{flag} needs a Trainer per client")
    if flags.get("precision") not in _PRECISIONS:
        precision = flags["precision"]
        raise CannotVectorizeError(f"client.precision={precision} needs a Trainer; 32-true and bf16-mixed do not")


def autocast(flags: Mapping[str, Any], device: torch.device) -> torch.autocast:
    """Return the context in which clients compute their gradients, as the flag ``precision`` says."""
    dtype = _PRECISIONS[flags.get("precision")]
    # Under torch.vmap, a cached cast would outlive the parameters that it was made from.
    return torch.autocast(device.type, dtype, enabled=dtype is not None, cache_enabled=False)


def check_settings(local_training: "LocalTraining") -> None:
    """Reject settings of local training that only a Trainer can follow."""
    if local_training.clock == "run":
        raise CannotVectorizeError("client.clock=run needs a Trainer per client")
    if local_training.timeout is not None:
        raise CannotVectorizeError("client.timeout is set, and clients that train at once cannot be timed separately")
    if local_training.log_metrics:
        raise CannotVectorizeError("client.log_metrics is set, and a Trainer collects what clients log")


def check_optimizers(module: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> None:
    """Reject optimisers that do not treat every entry alike, and schedulers that need more than a count."""
    if len(optimizers) != 1:
        raise CannotVectorizeError(f"there are {len(optimizers)} optimisers, not one")
    if type(optimizers[0]) not in _ELEMENTWISE:
        raise CannotVectorizeError(f"{type(optimizers[0]).__name__} does not treat every entry of a parameter alike")
    parameters = set(module.parameters())
    for group in optimizers[0].param_groups:
        if isinstance(group["lr"], Tensor):
            raise CannotVectorizeError("the learning rate is a tensor, not a number")
        if not parameters.issuperset(group["params"]):
            raise CannotVectorizeError(f"the optimiser has a parameter that {type(module).__name__} does not have")
    for config in schedulers:
        if config.reduce_on_plateau or config.frequency != 1:
            name = type(config.scheduler).__name__
            raise CannotVectorizeError(f"{name} does not step after every epoch or every batch")
