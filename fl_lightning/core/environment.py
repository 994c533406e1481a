"""What a run's result depends on: the machine, the installed packages and the state of the code."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

#: how many seconds git may take; a record is not worth a longer delay
_GIT_TIMEOUT = 2.0


def installed_packages() -> dict[str, str]:
    """Return the version of every installed distribution, sorted by name.

    Versions are read from the names of the metadata folders. ``importlib.metadata`` would read their files, which
    takes half a second.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        for folder in os.listdir(place or ".") if os.path.isdir(place or ".") else ():
            named = re.fullmatch(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", folder)
            if named:
                name = re.sub(r"[-_.]+", "-", named.group(1)).lower()
                found.setdefault(name, named.group(2))  # the first one on the path is imported
    return dict(sorted(found.items()))


def machine(device: torch.device, processes: int) -> dict[str, Any]:
    """Return what can change the last bits of a result besides the versions of packages.

    Args:
        device: the device that this process trains on.
        processes: number of processes.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": device.type,
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def git_states(places: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Return the commit of every git repository that holds one of the files or folders, by the repository's folder.

    ``changes`` is a digest of the changes to tracked files that are not committed; it is missing if there are none.
    """
    states: dict[str, dict[str, str]] = {}
    folders = dict.fromkeys(place if place.is_dir() else place.parent for place in places)
    for folder in folders:
        root = _git(folder, "rev-parse", "--show-toplevel")
        if root is None or root.decode(errors="replace").strip() in states:
            continue
        commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "diff", "--no-ext-diff", "HEAD")
        if commit is None:  # there is no commit yet
            continue
        state = {"commit": commit.decode().strip()}
        if changes != b"":
            state["changes"] = "unknown" if changes is None else hashlib.sha256(changes).hexdigest()[:12]
        states[root.decode(errors="replace").strip()] = state
    return states


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints, or None if it fails, is not installed or takes too long."""
    try:
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=_GIT_TIMEOUT, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
