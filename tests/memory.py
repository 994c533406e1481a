"""Measures how much memory a command and all its children use together: ``python tests/memory.py COMMAND...``.

Pages that processes share count once, because every process has its share of them (Linux only).
"""

import subprocess
import sys
import time
from pathlib import Path


def family(root: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(file.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def megabytes(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def main(command: list[str]) -> int:
    """Run a command, and print the peak with the processes that had a share in it."""
    child = subprocess.Popen(command)
    peak: dict[int, float] = {}
    while child.poll() is None:
        now = {process: megabytes(process) for process in family(child.pid)}
        if sum(now.values()) > sum(peak.values()):
            peak = now
        time.sleep(0.3)
    shares = ", ".join(f"{share:.0f}" for share in sorted(peak.values(), reverse=True) if share >= 1)
    print(f"peak {sum(peak.values()):.0f} MB, in processes of {shares}")
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
