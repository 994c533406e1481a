"""The benchmark compares contestants that compute the same thing, and its table says so. Nothing is timed here."""

import json
import runpy
import sys

import pytest
import torch

from fl_lightning.models import FullyConnected, MnistCNN
from tests.runs import REPOSITORY

FOLDER = REPOSITORY / "benchmarks" / "simulators"
TINY = "--turns 1 --threads 1 --clients 4 --samples 100 --test-samples 200 --tasks T1 --contestants plain ours"


@pytest.fixture
def benchmark_modules(monkeypatch):
    """Make the benchmark's files importable, and forget them afterwards, because their names are common words."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.slow
def test_the_plain_loop_and_ours_end_with_the_same_model(alone, benchmark_modules, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["simulators", *TINY.split(), "--out", str(tmp_path)])
    runpy.run_path(str(FOLDER), run_name="__main__")
    plain, ours = json.loads((tmp_path / "results.json").read_text())["tasks"]["T1"]
    assert ours["skipped"] is None
    assert ours["difference"] < 1e-6
    assert ours["accuracy"] == pytest.approx(plain["accuracy"])
    assert (tmp_path / "ratios.png").stat().st_size > 0


def test_the_networks_of_the_benchmark_are_those_of_the_package(benchmark_modules):
    from contest import load, make_net

    images = torch.randn(2, 1, 28, 28)
    for name, theirs in (("mlp", FullyConnected()), ("cnn", MnistCNN())):
        net = make_net(name)
        load(net, list(theirs.parameters()))
        assert torch.equal(net(images), theirs(images))


def test_the_table_ranks_by_the_median_of_the_ratios_within_a_turn(benchmark_modules):
    from driver import Row
    from report import Results, table

    def row(key: str, seconds: list[float]) -> Row:
        return Row(key, key, None, {"torch": "2"}, 1.0, seconds[0], seconds, [0.5], 100.0, 0.0)

    # The ratios of "steady" are 2, 2 and 2. Those of "uneven" are 1, 1 and 9, although its mean time is larger.
    rows = [row("plain", [9, 1, 2, 3]), row("steady", [9, 2, 4, 6]), row("uneven", [9, 1, 2, 27])]
    lines = [line for line in table(Results({"T1": rows}, {})).splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| plain", "| uneven", "| steady"]
    assert "| 2.00 (2.00–2.00) |" in lines[-1]


def test_the_table_names_a_peer_that_is_missing(benchmark_modules):
    from driver import Row
    from report import Results, table

    plain = Row("plain", "plain", None, {"torch": "2"}, 1.0, 1.0, [1.0, 1.0], [0.5], 100.0, 0.0)
    missing = Row("pfl", "Apple pfl", "not installed: run benchmarks/peers.sh pfl")
    assert "- Skipped: Apple pfl: not installed" in table(Results({"T1": [plain, missing]}, {}))


def test_the_table_marks_a_contestant_that_learned_something_else(benchmark_modules):
    from driver import Row
    from report import verdict

    plain = Row("plain", "plain", accuracy=[0.90], difference=0.0)
    assert verdict(Row("a", "a", accuracy=[0.50], difference=1e-6), plain).startswith("same weights")
    assert verdict(Row("b", "b", accuracy=[0.902], difference=0.1), plain) == "same accuracy"
    assert verdict(Row("c", "c", accuracy=[0.80], difference=0.1), plain) == "**not equal**"
