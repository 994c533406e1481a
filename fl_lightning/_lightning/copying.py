"""Copies of a module that take memory only for what is changed afterwards.

``copy.deepcopy`` alone copies every tensor, fails on locks and open files, rejects tensors that were computed (such as
the weight of ``torch.nn.utils.weight_norm``), and keeps functions that refer to the module bound to the original.
"""

import copy
import traceback
from collections import OrderedDict
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fl_lightning.core.errors import MisconfigurationError

Module = TypeVar("Module", bound=nn.Module)


def copy_module(module: Module, shared: dict[int, Any]) -> tuple[Module, list[str]]:
    """Copy a module. The memory of plain tensors is copied only when one side changes it.

    What cannot be copied, such as a lock or an open file, is shared by the original and the copy.

    Args:
        module: the module to copy.
        shared: objects by their ``id`` that the copy shares with the original, or what replaces them. Objects that turn
            out to be impossible to copy are added.

    Returns:
        The copy, and the names of the attributes that were added to ``shared``.
    """
    names: list[str] = []
    while True:
        memo = {**_empty_dictionaries(module), **shared}
        try:
            with _CopyOnWrite():
                copied = copy.deepcopy(module, memo)
            break
        except Exception as error:
            name, culprit = _find_culprit(error)
            if culprit is None or id(culprit) in shared:
                raise
            _check_shareable(f"{type(module).__name__}.{name}", culprit, error)
            shared[id(culprit)] = culprit
            names.append(f"{name} ({type(culprit).__name__})")
    for layer in module.modules():
        twin = memo.get(id(layer))
        if isinstance(twin, nn.Module):
            _rebind_functions(vars(layer), vars(twin), memo)
            for value in vars(layer).values():  # such as the hooks, which are keyed by number
                if isinstance(value, dict) and value and id(value) in memo:
                    _rebind_functions(value, memo[id(value)], memo)
    return copied, names


def _empty_dictionaries(module: nn.Module) -> dict[int, Any]:
    """Return copies of the empty dictionaries of all layers, such as those for hooks: ten per layer.

    ``copy.deepcopy`` takes as long for an empty ``OrderedDict`` as for a small object.
    """
    attributes = (value for layer in module.modules() for value in vars(layer).values())
    return {id(value): OrderedDict() for value in attributes if type(value) is OrderedDict and not value}


class _CopyOnWrite(TorchFunctionMode):
    """Makes ``copy.deepcopy`` copy tensors lazily, and computed tensors by value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if not tensor.is_leaf:
            memo[id(tensor)] = tensor.detach().clone()
            return memo[id(tensor)]
        if type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda"):
            _copy_storage_lazily(tensor, memo)
        return func(tensor, memo)


def _copy_storage_lazily(tensor: Tensor, memo: dict[Any, Any]) -> None:
    """Note a lazy copy of a tensor's memory where ``deepcopy`` looks for one; views of the same memory share it."""
    storage = tensor.untyped_storage()
    copies = memo.setdefault("torch", {})
    if storage._cdata in copies:
        return
    try:
        everything = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        copies[storage._cdata] = torch._lazy_clone(everything).untyped_storage()
    except RuntimeError:  # memory that torch does not own, such as NumPy's, is copied at once
        return


def _find_culprit(error: Exception) -> tuple[str, Any]:
    """Return the name and the object at which ``copy.deepcopy`` stopped, from its stack of calls."""
    names: list[str] = []
    culprit = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is copy.deepcopy.__code__:
            culprit = frame.f_locals.get("x")
        elif frame.f_code is copy._deepcopy_dict.__code__:  # type: ignore[attr-defined]
            names.append(str(frame.f_locals.get("key")))
    return ".".join(name for name in names if name != "_modules"), culprit


def _check_shareable(name: str, value: Any, error: Exception) -> None:
    """Reject an object that would carry one client's state over to the next."""
    if isinstance(value, GeneratorType):
        raise MisconfigurationError(
            f"{name} is a generator, which cannot be copied, so a client would continue where the last one stopped:"
            " keep a list, or make the generator in on_train_start"
        ) from error
    if isinstance(value, nn.Module | Tensor):
        reason = str(error).partition("\n")[0]
        raise MisconfigurationError(
            f"{name} is a {type(value).__name__} that cannot be copied for clients ({reason}):"
            " give it a __deepcopy__, or make it in on_train_start"
        ) from error


def _rebind_functions(original: dict[Any, Any], copied: dict[Any, Any], memo: dict[Any, Any]) -> None:
    """Give the copy its own functions where ``copy.deepcopy`` has left the original's."""
    if copied is not original:
        for key, value in original.items():
            if isinstance(value, FunctionType) and key in copied and copied[key] is value:
                copied[key] = _rebound(value, memo)


def _rebound(function: FunctionType, memo: dict[Any, Any]) -> Any:
    """Return the function with the copy wherever its closure refers to the original."""
    if id(function) in memo:
        return memo[id(function)]
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    if compiled is not None:  # a compiled method is compiled for one module, so the copy gets the method itself
        bound = _replaced(compiled, memo)
        return function if bound is compiled else bound
    cells = function.__closure__ or ()
    new_cells = tuple(memo.setdefault(id(cell), CellType()) for cell in cells)
    copied = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, new_cells)
    memo[id(function)] = copied  # before the cells are filled, because the function may refer to itself
    refers = False
    for cell, new_cell in zip(cells, new_cells, strict=True):
        content = _content(cell)
        new_cell.cell_contents = _replaced(content, memo)
        refers = refers or not any(new_cell.cell_contents is same for same in (content, copied))
    if not refers:
        memo[id(function)] = function
        return function
    copied.__kwdefaults__ = function.__kwdefaults__
    vars(copied).update(vars(function))
    return copied


def _replaced(value: Any, memo: dict[Any, Any]) -> Any:
    if isinstance(value, nn.Module | Tensor):
        return memo.get(id(value), value)
    if isinstance(value, MethodType):
        owner = _replaced(value.__self__, memo)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    return _rebound(value, memo) if isinstance(value, FunctionType) else value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not set yet
        return None
