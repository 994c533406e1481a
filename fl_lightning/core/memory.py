"""How the process gets memory for large tensors on a CPU."""

import ctypes

# from malloc.h
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def reuse_freed_memory() -> bool:
    """Keep freed memory in the process for the next tensor, instead of returning it to the system.

    By default, glibc maps memory for every large tensor and unmaps it when the tensor is freed, and the system clears
    every page again. Evaluating a convolutional network on a CPU takes a third less time without that. The command
    ``fl-lightning fit`` calls this; in Python, call it once at the start of a program.

    Returns:
        Whether the C library has these settings: only glibc does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
