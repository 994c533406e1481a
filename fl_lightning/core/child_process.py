"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys

#: environment variable with the id of the process that this one must not outlive
_PARENT = "FL_LIGHTNING_PARENT"
#: from linux/prctl.h
_PR_SET_PDEATHSIG = 1


def environment_of_child() -> dict[str, str]:
    """Return the environment for a process that must not outlive this one, see :func:`follow_parent`."""
    return {**os.environ, _PARENT: str(os.getpid())}


def follow_parent(parent: str | None = None) -> None:
    """End this process with SIGTERM when its parent ends, even if the parent was killed. This works only on Linux.

    Processes that this one starts do not inherit the request.

    Args:
        parent: the parent's process id, unless :func:`environment_of_child` has put one into the environment.
    """
    parent = os.environ.pop(_PARENT, None) or parent
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent ended before the request
        os.kill(os.getpid(), signal.SIGTERM)
