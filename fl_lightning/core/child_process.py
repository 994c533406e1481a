"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys

#: environment variable with the number of the process that this one must not outlive
_PARENT = "FL_LIGHTNING_PARENT"
#: from linux/prctl.h
_PR_SET_PDEATHSIG = 1


def environment_of_child() -> dict[str, str]:
    """Return the environment for a process that must not outlive this one, see :func:`follow_parent`."""
    return {**os.environ, _PARENT: str(os.getpid())}


def follow_parent(parent: str | None = None) -> None:
    """End with SIGTERM when the process that started this one ends, even if it was killed. This works only on Linux.

    Processes that are started by this one do not inherit the request.

    Args:
        parent: number of that process; by default, the process that called :func:`environment_of_child`, if any.
    """
    parent = os.environ.pop(_PARENT, None) or parent
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the request
        os.kill(os.getpid(), signal.SIGTERM)
