"""Handing Lightning's hooks on from a wrapper to the object it wraps."""

from collections.abc import Iterable
from typing import Any

from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.model_helpers import is_overridden


class Delegate:
    """Calls another object's hook as if Lightning had called it there, so that ``self.log`` works inside."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        #: Lightning looks here for the signature, and for whether the hook is overridden
        self.__wrapped__ = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.owner, LightningModule):
            return self.__wrapped__(*args, **kwargs)
        outer, self.owner._current_fx_name = self.owner._current_fx_name, self.name
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            self.owner._current_fx_name = outer


class BatchDelegate(Delegate):
    """A hook on batches; the server's own batches, which are lists of clients, pass by it."""

    def __init__(self, owner: Any, name: str, wrapper: Any) -> None:
        super().__init__(owner, name)
        self.wrapper = wrapper

    def __call__(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.wrapper.trainer
        return batch if trainer is not None and trainer.training else super().__call__(batch, *args, **kwargs)


_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def delegate_hooks(wrapper: Any, owner: Any, names: Iterable[str]) -> None:
    """Makes those of the hooks that ``owner`` overrides the hooks of ``wrapper``; the hooks on batches among them."""
    for name in names:
        if is_overridden(name, owner):
            setattr(wrapper, name, Delegate(owner, name))
    for name in _BATCH_HOOKS:
        if is_overridden(name, owner):
            setattr(wrapper, name, BatchDelegate(owner, name, wrapper))


def has_batch_hooks(owner: Any) -> bool:
    """Whether a module or its data wants to see batches on their way to the device."""
    return any(is_overridden(name, owner) for name in _BATCH_HOOKS)


def blank_hooks(owner: Any, base: type, names: Iterable[str]) -> None:
    """Makes the hooks do nothing again, as in ``base``: to Lightning they look as if they were not overridden."""
    for name in names:
        setattr(owner, name, getattr(base, name).__get__(owner))
