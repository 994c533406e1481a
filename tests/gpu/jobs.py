"""Runs jobs of ``tests.gpu.child`` once per test session, whichever test process asks first."""

import fcntl
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.gpu.runtime import unavailable
from tests.runs import REPOSITORY
from tests.turns import shared_folder, turn


class Jobs:
    """A group of jobs that share a process on the emulated GPU, because importing Lightning takes longer than a job.

    Args:
        jobs: what to run, as ``kind: case``.
        factory: names the folder that all test processes of the session share.
    """

    def __init__(self, jobs: list[str], factory: pytest.TempPathFactory) -> None:
        self._jobs = jobs
        self._factory = factory
        self._file = shared_folder(factory) / f"emulated_gpu_{jobs[0].replace(': ', '_')}.json"

    def result(self, job: str) -> dict[str, Any]:
        """Return a job's result, after running the whole group if no test has done so yet."""
        reason = unavailable()
        if reason is not None:
            pytest.skip(reason)
        with open(self._file.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._file.exists():
                with turn(self._factory):
                    self._run()
        result = json.loads(self._file.read_text())[job]
        assert "error" not in result, result["error"]
        return result

    def _run(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PL_")}
        command = [sys.executable, "-m", "tests.gpu.child", str(self._file), *self._jobs]
        process = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
