"""A user's module in the role of a client."""

import copy
from functools import cache, partial
from typing import Any

from pytorch_lightning import LightningModule
from torch import nn
from torchmetrics import Metric

# These ran once, on the global model. A second `setup` could build a layer anew, and `configure_callbacks` would write
# one checkpoint per client.
_RUN_ONCE = ("prepare_data", "setup", "configure_model", "configure_callbacks", "teardown")


def client_copy(module: LightningModule) -> LightningModule:
    """Copy a module for use as a client: without its Trainer, and with the hooks that already ran switched off.

    Its metrics are the client's own, even where ranks could exchange theirs.
    """
    memo: dict[int, Any] = {id(value): value for value in shared_callables(module)}
    if module._trainer is not None:
        memo[id(module._trainer)] = None
    client = copy.deepcopy(module, memo)
    client._metric_attributes = None  # Lightning's record of which attribute holds which metric of the original
    for layer in client.modules():
        if isinstance(layer, Metric):
            layer.distributed_available_fn = _never
    client.__class__ = _client_class(type(module))  # type: ignore[arg-type]
    return client


def shared_callables(module: nn.Module) -> list[partial]:
    """Return the attributes that clients share because they cannot change them.

    The command line gives a module its optimiser as a partial that leads to the parser, the server and all data.
    """
    return [value for layer in module.modules() for value in vars(layer).values() if isinstance(value, partial)]


@cache
def _client_class(module_class: type[LightningModule]) -> type[LightningModule]:
    """Derive the class of a client's module; to Lightning, the hooks look as if they were not overridden."""
    hooks = {name: getattr(LightningModule, name) for name in _RUN_ONCE}
    # As a local class it is not found beside the user's own when the command line looks up a short name.
    names = {
        "__module__": module_class.__module__,
        "__qualname__": f"_client_class.<locals>.{module_class.__qualname__}",
    }
    return type(module_class.__name__, (_FastAttributes, module_class), {**hooks, **names})


class _FastAttributes:
    """Skips ``nn.Module``'s checks for the name of the current hook, which Lightning notes forty times per step."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


def _never() -> bool:
    return False
