"""CUDA without a GPU: real ``cuda`` tensors whose memory is the host's and whose kernels are the CPU's.

Three layers:

1. ``runtime.c`` stands in for the CUDA runtime. ``torch.cuda.is_available()`` is true, and tensors, generators,
   autograd, pickles and Lightning's ``CUDAAccelerator`` are the real ones, unpatched.
2. :class:`EmulatedGPU` runs every operation on a CUDA tensor as the CPU kernel on the same memory, so the values are
   right and a run can be compared with the same run on the CPU.
3. Where an operation mixes devices, ``FakeTensorMode`` is asked whether CUDA accepts it, and its refusal is raised.
   Whatever makes the host wait for the device is recorded with the line that asked for it.

What it cannot show:

- Time and races: streams do nothing, so a missing synchronisation does not show. Nor does memory pressure.
- A GPU's numbers: there is no TF32, no cuDNN and no atomic sum, and random numbers are the CPU's.
- Mixtures with 0-dimensional CPU tensors that FakeTensorMode accepts and CUDA does not; see ``record.mixtures``.
- NCCL: collectives run over gloo on the same memory. With ``nccl=True``, tensors that NCCL rejects are rejected.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.gpu.kernels import host_alias, is_composite, needs_no_kernel, run_on_host
from tests.gpu.record import Frame, Record
from tests.gpu.runtime import runtime_calls, stream_waits

#: operations whose CUDA kernels read something back before they can return
_WAITING = {
    *("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
    *("aten::bincount", "aten::equal", "aten::repeat_interleave", "aten::nonzero_static", "aten::_linalg_check_errors"),
    *("aten::multinomial", "aten::histc", "aten::allclose"),
}
_DETERMINISTIC: Any = torch.utils.deterministic
#: copies to the device of at most this many bytes do not block (CUDA's programming guide, "Concurrent execution")
_STAGED = 65536
_COPIES = ("aten::_to_copy", "aten::copy_")
_INDEXING = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")


class EmulatedGPU(TorchDispatchMode):
    """While it is entered, CUDA tensors work.

    Args:
        code: folders of the code under test; events are attributed to its innermost line.
        phase: returns the name of the phase that a stack, innermost frame first, belongs to.
        nccl: treat the process group as NCCL, which rejects tensors on the CPU.
    """

    def __init__(
        self, code: tuple[str, ...] = (), phase: Callable[[list[Frame]], str] = lambda frames: "", nccl: bool = False
    ) -> None:
        super().__init__()
        self.record = Record(code, phase)
        self._nccl = nccl
        self._referee = FakeTensorMode()
        self._surroundings = _Surroundings(self.record)
        self._constructors = _Constructors(self.record)

    def __enter__(self) -> "EmulatedGPU":
        self._surroundings.enter()
        self._constructors.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._constructors.__exit__(*exception)
        self._surroundings.exit()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
        if func.namespace == "c10d":
            return self._collective(func, args, kwargs, tensors)
        if not on_gpu and (target is None or target.type != "cuda"):
            return func(*args, **kwargs)
        if is_composite(func):  # in inference mode, these are not decomposed before they come here
            with _Again(self):
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if needs_no_kernel(func):
            return func(*args, **kwargs)
        if target is not None and target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        name = func._schema.name
        if len({tensor.device for tensor in tensors}) > 1 and name not in _COPIES:
            self._check_mixture(func, args, kwargs, tensors)
        self._watch(name, args, kwargs, target, bool(on_gpu))
        device = args[0].device if name == "aten::copy_" else target or on_gpu[0].device
        return run_on_host(func, args, kwargs, device)

    def _watch(self, name: str, args: Any, kwargs: dict[str, Any], target: torch.device | None, on_gpu: bool) -> None:
        """Record whether CUDA's implementation of an operation makes the host wait."""
        if name == "aten::_local_scalar_dense":
            self.record.add_wait("item")
        elif name in _COPIES:
            copied = name == "aten::copy_"
            source, destination = (args[1], args[0].device) if copied else (args[0], target or args[0].device)
            flag = args[2] if copied and len(args) > 2 else False
            if source.device.type != destination.type:
                self._watch_copy(args[0] if copied else None, source, destination, kwargs.get("non_blocking", flag))
        elif name in _INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.record.add_wait("index by mask")
            if args[0].is_cuda and any(not index.is_cuda for index in indices):
                self.record.add_wait("index to device")
        elif name in _WAITING:
            self.record.add_wait(name)
        elif target is not None and not on_gpu and any(isinstance(value, Tensor) for value in args):
            self.record.add_wait(f"to device by {name}")

    def _watch_copy(self, into: Tensor | None, source: Tensor, destination: torch.device, non_blocking: bool) -> None:
        """Record a copy. One that does not block must use pinned memory, or be small, or else the driver may wait."""
        kind = "to host" if destination.type == "cpu" else "to device"
        host = source if kind == "to device" else into
        if not source.numel():
            return
        if not non_blocking:
            self.record.add_wait(kind)
        elif host is not None and host.is_pinned():
            kind += ", pinned"
        elif kind == "to device" and source.nbytes <= _STAGED:
            kind += ", staged"
        else:
            kind += ", pageable"
            self.record.add_wait(kind)
        self.record.add_copy(kind, source.nbytes)

    def _check_mixture(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        """Ask FakeTensorMode whether CUDA accepts these devices in one operation; raise what it raises."""

        def imitate(tensor: Tensor) -> Tensor:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)

        with self._referee:
            fake_args, fake_kwargs = tree_map_only(Tensor, imitate, (args, kwargs))
            with suppress(DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException):
                func(*fake_args, **fake_kwargs)
        shapes = ", ".join(f"{tensor.device}{list(tensor.shape)}" for tensor in tensors)
        self.record.add_mixture(func._schema.name, shapes)

    def _collective(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        name = func._schema.name
        if "barrier" in name:
            return func(*args, **kwargs)
        for tensor in tensors:
            if self._nccl and not tensor.is_cuda:
                raise RuntimeError(f"{name}: No backend type associated with device type cpu (NCCL)")
            if self._nccl and tensor.numel() == 0:
                raise RuntimeError(f"{name}: an empty tensor, which some versions of NCCL reject")
            if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
                raise RuntimeError(f"{name}: {tensor.device}, but the rank is on {torch.cuda.current_device()}")
        self.record.add_copy(name, sum(tensor.nbytes for tensor in tensors))
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        return run_on_host(func, args, kwargs, device)


class _Again(TorchDispatchMode):
    """Passes the parts of an operation to the mode that is handling the operation and would not see them."""

    def __init__(self, mode: EmulatedGPU) -> None:
        super().__init__()
        self._mode = mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._mode.__torch_dispatch__(func, types, args, kwargs)


class _Constructors(TorchFunctionMode):
    """Records who makes torch wait without an operation, as ``torch.tensor(numbers, device="cuda")`` does."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = stream_waits()
        result = func(*args, **(kwargs or {}))
        waits = stream_waits() - before
        if waits and func.__name__ in ("tensor", "new_tensor", "as_tensor", "asarray"):
            self._record.add_wait("to device", waits)
            self._record.add_copy("to device", result.nbytes)
        elif waits and func.__name__ not in _Surroundings.watched:
            self._record.add_wait(f"torch.{func.__name__}", waits)
        return result


class _Surroundings:
    """What must be different in torch while the emulated GPU is in use."""

    #: functions that wait without being an operation
    watched: ClassVar = ("empty_cache", "synchronize")

    def __init__(self, record: Record) -> None:
        self._record = record

    def enter(self) -> None:
        """Watch functions that wait, run the backward pass in this thread, and print CUDA tensors on the host."""
        self._threads = torch.autograd.set_multithreading_enabled(False)
        self._threads.__enter__()
        self._fill = _DETERMINISTIC.fill_uninitialized_memory  # by a kernel that no mode would see
        _DETERMINISTIC.fill_uninitialized_memory = False
        self._originals = {name: getattr(torch.cuda, name) for name in self.watched}
        for name, original in self._originals.items():
            setattr(torch.cuda, name, self._watch(name, original))
        self._print = torch._tensor_str._str
        torch._tensor_str._str = self._print_on_host

    def exit(self) -> None:
        """Restore everything."""
        torch._tensor_str._str = self._print
        for name, original in self._originals.items():
            setattr(torch.cuda, name, original)
        _DETERMINISTIC.fill_uninitialized_memory = self._fill
        self._threads.__exit__(None, None, None)

    def _watch(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = runtime_calls()["cudaFree"]
            result = original(*args, **kwargs)
            self._record.add_wait(f"torch.cuda.{name}")
            freed = runtime_calls()["cudaFree"] - before
            if freed:
                self._record.add_wait(f"cudaFree in {name}", freed)
            return result

        return call

    def _print_on_host(self, tensor: Tensor, *, tensor_contents: Any = None) -> str:
        if not tensor.is_cuda:
            return self._print(tensor, tensor_contents=tensor_contents)
        with _disable_current_modes():
            text = self._print(host_alias(tensor.detach()), tensor_contents=tensor_contents)
        return f"{text[:-1]}, device='{tensor.device}')"
