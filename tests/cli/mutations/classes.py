"""Configs in which a slot has a class of another kind, a function or no class at all."""

from collections.abc import Iterator
from typing import Any

from tests.cli.mutations.base import Mutation, base, changed
from tests.cli.mutations.right_configs import CLIENT_CALLBACKS, SERVER_CALLBACKS
from tests.cli.mutations.wrong_values import ALIEN_CLASSES, SLOTS

#: where a number or a truth value means something
_ALSO_SCALARS = ("data.label", "trainer.logger", "trainer.plugins", "client.profiler", "trainer.profiler")
_UNUSUAL_OPTIMIZERS = (
    *("SparseAdam", "LBFGS", "Muon", "Adafactor", "Rprop"),
    *("ASGD", "NAdam", "RAdam", "Adamax", "Adadelta"),
)
#: nets that do not fit the digits; True if they must be refused
_OTHER_NETS: list[tuple[str, dict[str, Any], bool]] = [
    *((net, {}, True) for net in ("MnistCNN", "CifarCNN", "LeNet", "FullyConnected", "BiLSTM", "AlexNet32")),
    *((net, {}, True) for net in ("FourLayerCNN", "torch.nn.Module")),
    *((net, {}, False) for net in ("torch.nn.Identity", "torch.nn.ReLU", "FedNSCNN")),
    ("MLR", {"inputs": 63}, True),
    ("DigitsCNN", {"num_classes": 5}, True),
]


def classes() -> Iterator[Mutation]:
    """Yield all of them."""
    for slot in SLOTS:
        yield from _aliens(slot)
        if isinstance(SLOTS[slot], dict):
            yield from _odd_arguments(slot, SLOTS[slot])
    for slot in ("model.init_args.optimizer", "server.optimizer"):
        for name in _UNUSUAL_OPTIMIZERS:
            for arguments in ({}, {"lr": -1}, {"lr": None}, {"lr": float("nan")}):
                yield _class_in(slot, name, arguments, wrong=bool(arguments))
    for name in ("Participation", "NormDiagnostics", "ClientEvaluation", "StopAtTarget", "FederatedServer"):
        yield _class_in("client.callbacks.0", name, SERVER_CALLBACKS.get(name, {}), wrong=True)
    yield _class_in("client.callbacks.0", "RunSummary", {}, wrong=True)
    for name, arguments in CLIENT_CALLBACKS.items():
        yield _class_in("trainer.callbacks.0", name, arguments, wrong=True)
    for name, extra in {"EarlyStopping": {}, "ModelCheckpoint": {}, "StopAtTarget": {"target": 1.0}}.items():
        spec = {"class_path": name, "init_args": {"monitor": "never/logged", **extra}}
        saving = changed(base(), "trainer.enable_checkpointing", True)
        yield Mutation(f"{name} on a metric that nobody logs", changed(saving, "trainer.callbacks.0", spec), True)
    for net, arguments, wrong in _OTHER_NETS:
        yield _class_in("model.init_args.net", net, arguments, wrong)
    yield Mutation("five classes", changed(base(), "model.init_args.num_classes", 5), True)


def _class_in(slot: str, name: str, arguments: dict[str, Any], wrong: bool) -> Mutation:
    config = changed(base(), slot, {"class_path": name, "init_args": arguments})
    return Mutation(f"{slot} is {name} {arguments}", config, wrong or None)


def _aliens(slot: str) -> Iterator[Mutation]:
    """Put into a slot what no slot accepts, and what the other slots accept."""
    for kind, value in ALIEN_CLASSES.items():
        loose = slot in _ALSO_SCALARS and not isinstance(value, dict)
        yield Mutation(f"{slot} is {kind}", changed(base(), slot, value), None if loose else True)
    for other, value in SLOTS.items():
        if isinstance(value, dict) and other != slot:
            same_kind = (other == "model" and slot.endswith("net")) or other.endswith(slot.split(".")[-1])
            wrong = not same_kind or slot.endswith(".0")
            yield Mutation(f"{slot} is what {other} should be", changed(base(), slot, value), wrong or None)


def _odd_arguments(slot: str, right: dict[str, Any]) -> Iterator[Mutation]:
    """Give the right class wrong arguments."""
    for name, value in {"unknown": {}, "other": 1, "self": None}.items():
        spec = {**right, "init_args": {**right.get("init_args", {}), name: value}}
        yield Mutation(f"{slot} has the argument {name}", changed(base(), slot, spec), True)
    yield Mutation(f"{slot} has init_args 1", changed(base(), slot, {**right, "init_args": 1}), True)
    yield Mutation(f"{slot} has dict_kwargs", changed(base(), slot, {**right, "dict_kwargs": {"a": 1}}), True)
    yield Mutation(f"{slot} has no init_args", changed(base(), slot, {"class_path": right["class_path"]}))
