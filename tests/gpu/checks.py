"""Checks of the emulated GPU itself and of code that needs a GPU but no run. Each is a function without arguments."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fl_lightning.core.shelf import Shelf
from fl_lightning.core.transfer import to_device
from tests.gpu.emulator import EmulatedGPU
from tests.gpu.runtime import set_free_memory

GPU = torch.device("cuda:0")


def waits(action: Callable[[], object]) -> int:
    """Return how often an action makes the host wait."""
    with EmulatedGPU() as gpu:
        action()
    return sum(gpu.record.waits.values())


def ones(size: int = 4) -> Tensor:
    return torch.ones(size, device=GPU)


def everything_that_waits_is_noticed() -> None:
    actions: dict[str, Callable[[], object]] = {
        "item": lambda: ones().sum().item(),
        "condition": lambda: bool(ones().sum() > 0),
        "tolist": lambda: ones().tolist(),
        "cpu": lambda: ones().cpu(),
        "blocking upload": lambda: torch.ones(4).to(GPU),
        "large pageable upload": lambda: torch.ones(1 << 16).to(GPU, non_blocking=True),
        "upload of numbers": lambda: torch.tensor([1.0, 2.0], device=GPU),
        "mask": lambda: ones()[ones() > 0],
        "nonzero": lambda: ones().nonzero(),
        "empty_cache": lambda: torch.cuda.empty_cache(),
        "synchronize": lambda: torch.cuda.synchronize(),
    }
    unnoticed = [name for name, action in actions.items() if waits(action) == 0]
    assert unnoticed == []


def what_does_not_wait_is_not_blamed() -> None:
    actions: dict[str, Callable[[], object]] = {
        "arithmetic": lambda: (ones() * 2 + 1).sum(),
        "index": lambda: ones().index_select(0, torch.zeros(2, dtype=torch.int64, device=GPU)),
        "pinned upload": lambda: torch.ones(1 << 16).pin_memory().to(GPU, non_blocking=True),
        "to_device": lambda: to_device(torch.ones(1 << 16), GPU),
        "in-place": lambda: ones().add_(1, alpha=2.0),
    }
    blamed = [name for name, action in actions.items() if waits(action)]
    assert blamed == []


def a_mixture_of_devices_is_refused() -> None:
    with EmulatedGPU(), pytest.raises(RuntimeError, match="device"):
        ones() + torch.ones(4)


def gradients_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    layer, inputs = torch.nn.Linear(5, 3), torch.randn(7, 5)
    (expected,) = torch.autograd.grad(layer(inputs).square().sum(), layer.weight)
    with EmulatedGPU():
        layer.to(GPU)
        (found,) = torch.autograd.grad(layer(inputs.to(GPU)).square().sum(), layer.weight)
        assert torch.equal(found.cpu(), expected)


def tensors_that_fit_stay_on_the_device() -> None:
    set_free_memory(2 * 160)
    with EmulatedGPU() as gpu:
        shelf = Shelf()
        kept = [shelf.place({"a": ones(10)})["a"] for _ in range(6)]
        assert [value.is_cuda for value in kept] == [True] * 4 + [False] * 2
        assert all(value.is_pinned() for value in kept if not value.is_cuda)
        assert not gpu.record.waits
        shelf.settle()
        assert [event.kind for event in gpu.record.waits] == ["torch.cuda.synchronize"]
        assert all(torch.equal(value.cpu(), torch.ones(10)) for value in kept)


def a_replaced_tensor_makes_room() -> None:
    set_free_memory(2 * 40)
    with EmulatedGPU():
        shelf = Shelf()
        first = shelf.place({"a": ones(10)})
        assert shelf.place({"a": ones(10)}, replaced=first)["a"].is_cuda


CHECKS: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        everything_that_waits_is_noticed,
        what_does_not_wait_is_not_blamed,
        a_mixture_of_devices_is_refused,
        gradients_are_those_of_the_cpu,
        tensors_that_fit_stay_on_the_device,
        a_replaced_tensor_makes_room,
    )
}
