from collections.abc import Callable, Iterable
from typing import Any

import pytest
import yaml
from torch import nn
from torch.optim import Optimizer

from fl_lightning.cli.allowed_classes import check_named_classes
from fl_lightning.core.errors import MisconfigurationError

MakesOptimizer = Callable[[Iterable], Optimizer]
SHELL = {"class_path": "subprocess.getoutput", "init_args": {"cmd": "mkdir executed"}}
PROCESS = {"class_path": "subprocess.Popen", "init_args": {"args": ["mkdir", "executed"]}}


def make_net() -> nn.Linear:
    return nn.Linear(1, 1)


class Reader:
    def __call__(self, sample: Any) -> int:
        return sample[1]


class Outer(nn.Module):
    def __init__(self, inner: Any = None, make: MakesOptimizer | None = None) -> None: ...


@pytest.mark.parametrize(
    ("value", "hint", "problem"),
    [
        (SHELL, MakesOptimizer | None, "slot: subprocess.getoutput is a function, but a config may only call classes"),
        (SHELL, Any, "subprocess.getoutput is a function"),
        (PROCESS, MakesOptimizer, "subprocess.Popen is not a subclass of torch's Optimizer: use a class that is one"),
        (PROCESS, Any, "is a class of Python's standard library, which a config may not create: name another class"),
        (PROCESS, int | str | Callable[[Any], Any], "is a class of Python's standard library"),
        ({"class_path": "functools.partial"}, Callable[..., int], "is a class of Python's standard library"),
        ([PROCESS], list[Any], "slot.0: subprocess.Popen"),
        ({"some": PROCESS}, dict[str, Any], "slot.some: subprocess.Popen"),
        (print, MakesOptimizer, "slot=builtins.print is a function: name a subclass of torch's Optimizer"),
        (
            {"class_path": "tests.cli.test_allowed_classes.Outer", "init_args": {"inner": PROCESS}},
            nn.Module,
            "slot.init_args.inner: subprocess.Popen",
        ),
        (
            {"class_path": "tests.cli.test_allowed_classes.Outer", "init_args": {"make": SHELL}},
            nn.Module,
            "slot.init_args.make: subprocess.getoutput",
        ),
    ],
)
def test_what_a_config_may_not_name_is_refused(value, hint, problem):
    with pytest.raises(MisconfigurationError, match=problem):
        check_named_classes("slot", value, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}, MakesOptimizer | None),
        ({"class_path": "torch.nn.Linear"}, nn.Module),
        ({"class_path": "torch.nn.Linear"}, Any),
        ({"class_path": "torch.nn.CrossEntropyLoss"}, Callable[[Any, Any], Any]),
        ({"class_path": "tests.cli.test_allowed_classes.make_net"}, nn.Module),
        ({"class_path": "tests.cli.test_allowed_classes.Reader"}, int | str | Callable[[Any], Any]),
        (len, Callable[[Any], Any]),
        ("text", str),
        (None, MakesOptimizer | None),
    ],
)
def test_what_fits_is_accepted(value, hint):
    check_named_classes("slot", value, hint)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "key",
    [
        *("server.optimizer", "model.init_args.optimizer", "model.init_args.lr_scheduler", "model.init_args.net"),
        *("model", "data.source", "data.label", "data.partition", "data.selection", "client.profiler"),
        *("server.aggregator", "trainer.logger", "trainer.profiler", "trainer.strategy", "trainer.plugins"),
    ],
)
@pytest.mark.parametrize("named", [SHELL, PROCESS], ids=["function", "class"])
def test_no_slot_runs_a_command(run, tmp_path, key, named):
    config: Any = {
        "model": {"class_path": "Classifier", "init_args": {"net": {"class_path": "DigitsCNN"}}},
        "data": {
            "source": {"class_path": "Digits"},
            "partition": {"class_path": "Shards", "init_args": {"num_clients": 2}},
        },
    }
    node = config
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = named
    (tmp_path / "evil.yaml").write_text(yaml.safe_dump(config))
    code, _, err = run("fit", "--config", "evil.yaml")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "executed").exists()
