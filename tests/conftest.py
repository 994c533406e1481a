"""Fixtures. Heavy imports are inside them, because pytest-xdist's controller loads this file but runs no test."""

import atexit
import gc
import os
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runs import write_config
from tests.turns import turn

# They need libraries that are not installed here; `make test-thirdparty` runs them.
collect_ignore = ["thirdparty"]
# Tests fork, which a process that has used a GPU must not do. Those in tests/gpu have an emulated one.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Processes that tests start use one thread, too: as many test processes run at once as there are cores.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make cases between those of a spread slow. Start with the longest test, so that no other one waits for it."""
    counts: Counter[str] = Counter()
    for item in items:
        spread = item.get_closest_marker("spread")
        if spread is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.partition("[")[0]
            if counts[name] % spread.args[0]:
                item.add_marker(pytest.mark.slow)
            counts[name] += 1
    items.sort(key=lambda item: "tests/gpu/" not in item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import the test files without the garbage collector, which from then on ignores what they have imported.

    Runs collect the garbage of their clients themselves. A collection of everything takes as long as many tests, and
    a forked process would copy the memory that it looks at.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(700, 10, 500)
        gc.enable()


@pytest.fixture(scope="session")
def _freeze():
    """Return ``gc.freeze``, and let runs collect only new garbage.

    A run would unfreeze everything at its end, and a collection would then look at everything again.
    """
    from fl_lightning.client import trainers, training

    atexit.register(gc.unfreeze)  # or extension modules report leaks
    trainers.gc = SimpleNamespace(collect=partial(gc.collect, 1))
    training.gc = SimpleNamespace(freeze=lambda: None, unfreeze=lambda: None)
    return gc.freeze


@pytest.fixture(scope="module", autouse=True)
def _collected(_freeze):
    """Free what the tests of a file leave in reference cycles, and let the collector ignore what remains."""
    yield
    gc.collect()
    _freeze()


@pytest.fixture(scope="session", autouse=True)
def _entry_points_read_once():
    """Search the installed packages for callbacks once, not for every Trainer."""
    from lightning_fabric.utilities import registry

    registry.entry_points = cache(registry.entry_points)


@pytest.fixture(scope="session", autouse=True)
def _pictures_drawn_once():
    """Draw the picture of each partition once, not in every run that has one."""
    from fl_lightning.data.ownership import picture

    draw = picture.partition_image
    drawn: dict[str, np.ndarray] = {}

    def partition_image(ownership) -> np.ndarray:
        tables = [None if table is None else table.tolist() for table in (ownership.sizes, ownership.counts)]
        key = repr((ownership.source, ownership.partition, ownership.clients.tolist(), tables))
        if key not in drawn:
            drawn[key] = draw(ownership)
        return drawn[key].copy()

    picture.partition_image = partition_image


@pytest.fixture(autouse=True)
def _reproducible(monkeypatch: pytest.MonkeyPatch):
    """Use one thread, so that sums do not depend on the machine; set a seed and leave none in the environment."""
    import torch
    from pytorch_lightning import seed_everything

    torch.set_num_threads(1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    seed_everything(0, verbose=False)
    yield
    os.environ.pop("PL_SEED_WORKERS", None)


@pytest.fixture
def alone(tmp_path_factory):
    """Let no other test use much memory meanwhile."""
    with turn(tmp_path_factory):
        gc.collect()
        yield


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def data():
    from tests.toys import blobs

    return blobs()


@pytest.fixture(scope="session", autouse=True)
def _one_parser():
    """Let the commands of all tests share one parser."""
    from tests.cli.mutations.running import one_parser

    with one_parser():
        yield


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in an empty folder and returns its exit code and what it printed."""
    from fl_lightning.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    write_config(tmp_path / "run.yaml", trainer={"max_epochs": 2})

    def call(*arguments: object) -> tuple[int, str, str]:
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
