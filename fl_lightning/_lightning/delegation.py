"""Passing Lightning's hooks from a wrapper to the object that it wraps, and switching them off."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fl_lightning._lightning.names import LightningDataModule, LightningModule, is_overridden

_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class Delegate:
    """Calls another object's hook as if Lightning had called it there, so that ``self.log`` works inside."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        #: where Lightning looks for the signature, and for whether the hook is overridden
        self.__wrapped__ = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.owner, LightningModule):
            return self.__wrapped__(*args, **kwargs)
        outer, self.owner._current_fx_name = self.owner._current_fx_name, self.name
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            self.owner._current_fx_name = outer


class LoaderDelegate(Delegate):
    """Delegates a hook that returns loaders, and changes what it returns."""

    def __init__(self, owner: Any, name: str, change: Callable[[str, Any], Any]) -> None:
        super().__init__(owner, name)
        self.change = change

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.change(self.name, super().__call__(*args, **kwargs))


class BatchDelegate(Delegate):
    """Delegates a hook on batches. The server's own batches, which are lists of clients, bypass it."""

    def __init__(self, owner: Any, name: str, wrapper: Any) -> None:
        super().__init__(owner, name)
        self.wrapper = wrapper

    def __call__(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.wrapper.trainer
        return batch if trainer is not None and trainer.training else super().__call__(batch, *args, **kwargs)


def delegate_hooks(wrapper: Any, owner: Any, names: Iterable[str]) -> None:
    """Make ``wrapper`` pass these hooks and all batch hooks on to ``owner``, if ``owner`` overrides them."""
    for name in names:
        if is_overridden(name, owner):
            setattr(wrapper, name, Delegate(owner, name))
    for name in _BATCH_HOOKS:
        if is_overridden(name, owner):
            setattr(wrapper, name, BatchDelegate(owner, name, wrapper))


def delegate_loaders(wrapper: Any, owner: Any, names: Iterable[str], change: Callable[[str, Any], Any]) -> None:
    """Make ``wrapper`` return ``change(name, loaders)`` for these hooks of ``owner``, if ``owner`` overrides them."""
    for name in names:
        if is_overridden(name, owner):
            setattr(wrapper, name, LoaderDelegate(owner, name, change))


def has_batch_hooks(owner: Any) -> bool:
    """Return whether a module or data module overrides a hook that batches pass on their way to the device."""
    return any(is_overridden(name, owner) for name in _BATCH_HOOKS)


def batch_preparation(
    module: LightningModule, source: LightningDataModule, device: torch.device
) -> Callable[[Any], Any]:
    """Return what Lightning does to a batch between loader and training step.

    Hooks of the data module take precedence over those of the module.
    """
    owners = {name: source if is_overridden(name, source) else module for name in _BATCH_HOOKS}
    before, transfer, after = (getattr(owner, name) for name, owner in owners.items())
    return lambda batch: after(transfer(before(batch, 0), device, 0), 0)


def with_loaders(
    source: LightningDataModule, train: Any = None, validation: Any = None, test: Any = None
) -> LightningDataModule:
    """Return a copy of the source with other loaders. It keeps all other attributes and the batch hooks.

    Args:
        source: the data module of the run, already set up.
        train: what ``train_dataloader`` returns.
        validation: what ``val_dataloader`` returns; by default the source's own.
        test: what ``test_dataloader`` returns; by default the source's own.
    """
    data = copy.copy(source)
    data.train_dataloader = lambda: train  # type: ignore[method-assign]
    if validation is not None:
        data.val_dataloader = lambda: validation  # type: ignore[method-assign]
    if test is not None:
        data.test_dataloader = lambda: test  # type: ignore[method-assign]
    for name in ("prepare_data", "setup", "teardown"):  # they ran once, for all clients
        setattr(data, name, getattr(LightningDataModule, name).__get__(data))
    return data
