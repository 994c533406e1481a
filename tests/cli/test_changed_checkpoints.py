"""Checkpoints that somebody changed: the checksums are right, but a value inside has another type."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fl_lightning.core.run_folder import RunFolder
from tests.runs import write_config
from tests.toys import identical

MONITORED = [
    {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val_loss", "filename": "best"}},
    {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 50}},
    {"class_path": "fl_lightning.callbacks.Participation"},
]
ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}}
RUNS: dict[str, dict[str, Any]] = {
    "Scaffold": {"server": {"aggregator": "Scaffold", "optimizer": ADAM}, "trainer": {"callbacks": MONITORED}},
    "FedNNNN": {
        "server": {"aggregator": {"class_path": "FedNNNN", "init_args": {"beta": 0.7, "gamma": 0.8}}},
        "trainer": {},
    },
    "FedAdp": {"server": {"aggregator": "FedAdp"}, "trainer": {}},
    "FedDyn": {"server": {"aggregator": "FedDyn"}, "trainer": {}},
}
REPLACEMENTS = [None, "text", 3, 1.5, True, [], [1], {}, {"a": 1}, torch.ones(2), torch.ones(2, 3, dtype=torch.int64)]

Place = tuple[Any, ...]


def places(node: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where each value of nested dictionaries and lists is."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def value_at(node: Any, place: Place) -> Any:
    for key in place:
        node = node[key]
    return node


def replaced(node: Any, place: Place, value: Any) -> Any:
    """Return a copy of nested dictionaries and lists with another value at one place."""
    if not place:
        return value
    key, rest = place[0], place[1:]
    if isinstance(node, dict):
        return {name: replaced(item, rest, value) if name == key else item for name, item in node.items()}
    return type(node)(replaced(item, rest, value) if number == key else item for number, item in enumerate(node))


def may_hold(place: Place, value: Any, other: Any) -> bool:
    """Return whether a run may have the other value: other memories of clients or an optimiser, or a flag of Adam's."""
    if isinstance(value, dict) and isinstance(other, dict):
        return "store" in place or (place[0] == "optimizer_states" and place[-1] == "state")
    return value is None and isinstance(other, bool) and "param_groups" in place


def replacements(value: Any, place: Place) -> list[Any]:
    """Return values of other types. A list, a dictionary or a tensor may be replaced with another one."""
    same = {dict: (), list: (), torch.Tensor: (), float: (float, int)}.get(type(value), (type(value),))
    others = [other for other in REPLACEMENTS if type(other) not in same]
    return [other for other in others if not may_hold(place, value, other)]


@pytest.fixture
def begun(run, tmp_path):
    """Return a function that begins a run of an algorithm, and returns its folder and how its third round would end."""

    def begin(name: str) -> tuple[RunFolder, dict[str, torch.Tensor]]:
        options = RUNS[name]
        write_config(tmp_path / "run.yaml", server=options["server"], trainer={"max_epochs": 2, **options["trainer"]})
        code, _, err = run("fit", "--config", "run.yaml")
        assert code == 0, err
        folder = RunFolder(Path("runs/run/version_0"))
        shutil.copytree(folder.path, "kept")
        assert resume(run, folder)[0] == 0
        return folder, torch.load(folder.checkpoint, weights_only=True)["state_dict"]

    return begin


def resume(run, folder: RunFolder) -> tuple[int, str, str]:
    return run("fit", "--config", "run.yaml", "--ckpt_path", folder.checkpoint, "--trainer.max_epochs", 3)


def outcomes(run, begun, name: str, begin: int, step: int) -> tuple[Counter[str], list[str]]:
    """Return how often a changed checkpoint was refused or led to the same result, and all other outcomes."""
    folder, expected = begun(name)
    content = torch.load(RunFolder(Path("kept")).checkpoint, weights_only=True)
    changes = [(place, value) for place in places(content) for value in replacements(value_at(content, place), place)]
    counts: Counter[str] = Counter()
    others = []
    for place, value in changes[begin::step]:
        shutil.rmtree(folder.path)
        shutil.copytree("kept", folder.path)
        torch.save(replaced(content, place, value), folder.checkpoint)
        code, _, err = resume(run, folder)
        if code == 0:
            after = torch.load(folder.checkpoint, weights_only=True)["state_dict"]
            outcome = "same" if identical(after, expected) else "accepted"
        else:
            last = (err.splitlines() or [""])[-1]
            short = last.startswith("error: ") and err.count("error: ") == 1 and len(last) < 700
            outcome = "refused" if short and code in (1, 2) and "Traceback" not in err else "explained badly"
        counts[outcome] += 1
        if outcome not in ("same", "refused"):
            others.append(f"{outcome}: {place} = {value!r}: {err}")
    return counts, others


@pytest.mark.parametrize(("name", "begin"), [("Scaffold", 11), pytest.param("FedNNNN", 31, marks=pytest.mark.slow)])
def test_a_value_of_another_type_is_refused_in_one_line_or_changes_nothing(run, begun, name, begin):
    counts, others = outcomes(run, begun, name, begin, 600)
    assert not others
    assert counts["refused"] > counts["same"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", RUNS)
def test_every_value_of_another_type_is_refused_in_one_line_or_changes_nothing(run, begun, name, part):
    assert not outcomes(run, begun, name, part, 4)[1]
