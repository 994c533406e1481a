"""Copies of the user's module for clients."""

import copy
from functools import cache, partial
from typing import Any

from pytorch_lightning import LightningModule
from torch import nn
from torchmetrics import Metric

# These hooks already ran on the global model. A second `setup` could rebuild a layer, and `configure_callbacks` would
# write one checkpoint per client.
_RUN_ONCE = ("prepare_data", "setup", "configure_model", "configure_callbacks", "teardown")


def client_copy(module: LightningModule) -> LightningModule:
    """Copy a module for a client, without its Trainer and without the hooks that have already run.

    The copy's metrics are never synchronised over ranks.
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
    """Return the attributes that clients can share because they cannot change them.

    The command line passes optimisers as partials that reference the parser, the server and all data, so copying one
    would copy these too.
    """
    return [value for layer in module.modules() for value in vars(layer).values() if isinstance(value, partial)]


@cache
def _client_class(module_class: type[LightningModule]) -> type[LightningModule]:
    """Derive the class of a client's module; to Lightning, the hooks look as if they were not overridden."""
    hooks = {name: getattr(LightningModule, name) for name in _RUN_ONCE}
    # The command line ignores local classes when it looks up a short name, so this one does not hide the user's own.
    names = {
        "__module__": module_class.__module__,
        "__qualname__": f"_client_class.<locals>.{module_class.__qualname__}",
    }
    return type(module_class.__name__, (_FastAttributes, module_class), {**hooks, **names})


class _FastAttributes:
    """Skips ``nn.Module``'s checks for the name of the current hook, which Lightning sets forty times per step."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


def _never() -> bool:
    return False
