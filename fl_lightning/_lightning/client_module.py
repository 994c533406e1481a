"""Copies of the user's module for clients."""

from functools import cache, partial
from typing import Any

from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torchmetrics import Metric

from fl_lightning._lightning.copying import copy_module
from fl_lightning._lightning.names import Callback, LightningModule, rank_zero_info, to_uncompiled

# These hooks already ran on the global model. A second `setup` could rebuild a layer, and `configure_callbacks` would
# write one checkpoint per client.
_RUN_ONCE = ("prepare_data", "setup", "configure_model", "configure_callbacks", "teardown")

#: the attribute in which a module notes the hook that it is in
CURRENT_HOOK = "_current_fx_name"


def client_copy(module: LightningModule, uncopied: list[str] | None = None) -> LightningModule:
    """Copy a module for a client, without its Trainer and without the hooks that have already run.

    The copy's metrics are never synchronised over ranks, and it is not compiled.

    Args:
        module: the module to copy.
        uncopied: receives the names of the attributes that the copy shares because they cannot be copied.
    """
    shared: dict[int, Any] = {id(value): value for value in shared_callables(module)}
    if module._trainer is not None:
        shared[id(module._trainer)] = None
    client, names = copy_module(module, shared)
    if uncopied is not None:
        uncopied += names
    client._metric_attributes = None  # Lightning's record of which attribute holds which metric of the original
    for layer in client.modules():
        if isinstance(layer, Metric):
            layer.distributed_available_fn = never
        vars(layer).pop("_compiled_call_impl", None)  # set by layer.compile(); it would call the original
    for name in _RUN_ONCE:  # to Lightning, these look as if they were not overridden
        setattr(client, name, getattr(LightningModule, name).__get__(client))
    return client


def without_compilation(module: Any) -> Any:
    """Return the module that ``torch.compile`` wraps, or the module itself if it is not compiled as a whole.

    A compiled module runs the original's steps on the original's weights, so a copy for clients would train the global
    model.
    """
    if not isinstance(module, OptimizedModule) and getattr(module, "_compiler_ctx", None) is None:
        return module
    original = to_uncompiled(module)
    rank_zero_info(
        f"{type(original).__name__} is compiled as a whole, but every client trains a copy of it, so it runs"
        " uncompiled: to compile, wrap its network instead, self.net = torch.compile(self.net)"
    )
    return original


def keep_metrics_local(callback: Callback) -> None:
    """Keep a client callback's metrics from being synchronised over ranks, which train different clients."""
    for value in vars(callback).values():
        if isinstance(value, Metric):
            value.distributed_available_fn = never


def shared_callables(module: nn.Module) -> list[partial]:
    """Return the attributes that clients can share because they cannot change them.

    The command line passes optimisers as partials that reference the parser, the server and all data, so copying one
    would copy these too. A partial over the module itself, or over a tensor, belongs to the client and is copied.
    """
    partials = [value for layer in module.modules() for value in vars(layer).values() if isinstance(value, partial)]
    return [value for value in partials if not _holds_state(value)]


def _holds_state(value: partial) -> bool:
    parts = [getattr(value.func, "__self__", None), value.func, *value.args, *value.keywords.values()]
    return any(isinstance(part, nn.Module | Tensor) for part in parts)


def with_fast_attributes(module: LightningModule) -> LightningModule:
    """Speed up how a module notes the hook that it is in, which Lightning does forty times per step."""
    module.__class__ = _fast_class(type(module))  # type: ignore[arg-type]
    return module


@cache
def _fast_class(module_class: type[LightningModule]) -> type[LightningModule]:
    # The command line ignores local classes when it looks up a short name, so this one does not hide the user's own.
    names = {
        "__module__": module_class.__module__,
        "__qualname__": f"_fast_class.<locals>.{module_class.__qualname__}",
    }
    return type(module_class.__name__, (_FastAttributes, module_class), names)


class _FastAttributes:
    """Skips ``nn.Module``'s checks for the name of the current hook. Copies and pickles have the user's own class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Do not run the user's ``__init_subclass__``, which may register the class."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == CURRENT_HOOK:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return _new, (type(self).__bases__[1],), *reduced[2:]


def _new(module_class: type[LightningModule]) -> LightningModule:
    return module_class.__new__(module_class)


def never() -> bool:
    """Return False, which tells a metric not to synchronise over ranks."""
    return False
