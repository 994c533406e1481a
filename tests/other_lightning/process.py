"""Runs programs in processes that have imported ``lightning`` and not ``pytorch_lightning``."""

import importlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = "tests.other_lightning.programs"

# The server process imports Lightning once, and every program starts in a fork of it.
_CONTEXT: Any = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["lightning", "sklearn", "torchvision"])


class Finished(NamedTuple):
    """What a program returned and printed."""

    value: Any
    printed: str


def run_program(name: str, *arguments: object, folder: Path, **environment: str) -> Finished:
    """Run a function of ``programs.py`` in a new process. What it raises is raised here.

    It is named, not passed, because importing it here would import ``lightning`` into the process of all other tests.

    Args:
        name: the function.
        arguments: its arguments.
        folder: the current folder of the process.
        environment: environment variables to set.
    """
    with ProcessPoolExecutor(1, mp_context=_CONTEXT) as pool:
        value = pool.submit(_run, name, arguments, folder, environment).result(timeout=240)
    return Finished(value, (folder / "printed.txt").read_text())


def stop_server() -> None:
    """Stop the server process, which needs half a gigabyte. The next program starts it again."""
    forkserver._forkserver._stop()


def _run(name: str, arguments: tuple[object, ...], folder: Path, environment: dict[str, str]) -> Any:
    os.chdir(folder)
    printed = os.open("printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    for variable in [name for name in os.environ if name.startswith(("PL_", "FL_"))]:
        del os.environ[variable]
    os.environ.update(environment, OMP_NUM_THREADS="1")
    return getattr(importlib.import_module(PROGRAMS), name)(*arguments)
