"""Compiles and loads the stand-in for the CUDA runtime, ``runtime.c``.

It must be loaded before torch, because torch's libraries bind to the first CUDA runtime that they find. This module
therefore imports nothing heavy.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("runtime.c")
#: what the runtime counts, in the order of its enumeration
_COUNTS = (
    "kernel launches",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaFree",
    "cudaMemGetInfo",
    "cudaGetDeviceProperties",
    "cudaSetDevice",
)
_library: ctypes.CDLL | None = None


def unavailable() -> str | None:
    """Return why the emulation cannot run on this machine, or None if it can. Looks at files only."""
    if sys.platform != "linux":
        return f"the emulated GPU needs Linux, not {sys.platform}"
    if shutil.which("cc") is None:
        return "the emulated GPU needs a C compiler: install gcc"
    if not (_packages() / "torch/lib/libc10_cuda.so").is_file():
        return "the emulated GPU needs torch's CUDA build"
    if not _include_folders():
        return "the emulated GPU needs CUDA's headers: install nvidia-cuda-runtime and triton"
    return None


def install(devices: int = 1) -> None:
    """Load the runtime with this number of devices. Call it before torch is imported."""
    global _library
    if _library is not None:
        return
    if "torch" in sys.modules:
        raise RuntimeError("torch is already imported: install the runtime first, in a process of its own")
    os.environ["EMULATED_CUDA_DEVICES"] = str(devices)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    _library = ctypes.CDLL(str(_compile()), mode=ctypes.RTLD_GLOBAL)
    _library.emulated_cuda_count.restype = ctypes.c_long


def runtime_calls() -> dict[str, int]:
    """Return how often each counted function of the runtime has been called so far."""
    assert _library is not None
    return {name: _library.emulated_cuda_count(position) for position, name in enumerate(_COUNTS)}


def stream_waits() -> int:
    """Return how often the host has waited for a stream so far."""
    assert _library is not None
    return _library.emulated_cuda_count(_COUNTS.index("cudaStreamSynchronize"))


def set_free_memory(size: int) -> None:
    """Set how many bytes of memory every device reports as free."""
    os.environ["EMULATED_CUDA_FREE"] = str(size)


def _packages() -> Path:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return Path(torch.origin).parent.parent


def _include_folders() -> list[Path]:
    packages = _packages()
    candidates = [*sorted(packages.glob("nvidia/cu*/include")), packages / "nvidia/cuda_runtime/include"]
    folders = [folder for folder in candidates if (folder / "cuda_runtime_api.h").is_file()]
    compiler_headers = packages / "triton/backends/nvidia/include"  # crt/host_defines.h is not in the runtime's package
    return [*folders, compiler_headers] if folders and compiler_headers.is_dir() else []


def _compile() -> Path:
    """Compile the runtime, unless an earlier process has compiled the same source."""
    source, includes = _SOURCE.read_text(), [f"-I{folder}" for folder in _include_folders()]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()) / f"emulated-cuda-{os.getuid()}"
    folder.mkdir(exist_ok=True, parents=True, mode=0o700)
    library = folder / f"{hashlib.sha256((source + str(includes)).encode()).hexdigest()[:16]}.so"
    if not library.is_file():
        part = library.with_suffix(f".{os.getpid()}")
        # torch's compiler library asks for libcuda.so.1 by name
        options = ["-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", "-pthread"]
        subprocess.run(["cc", *options, *includes, str(_SOURCE), "-o", str(part)], check=True)
        part.replace(library)
    return library
