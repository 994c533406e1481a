"""Generates wrong and odd configs from right ones, and runs them."""

import copy
import io
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.runs import REPOSITORY

Outcome = Literal[
    "trained", "one line", "one line after a round", "traceback", "traceback after a round", "hang", "wrongly accepted"
]
#: how a run may end
GOOD = ("trained", "one line")

#: seconds after which a run counts as a hang
PATIENCE = 60

#: a short run, to be laid over the demo
SHORT = {
    "data": {"selection": {"class_path": "RandomClients", "init_args": {"count": 2}}},
    "client": {"epochs": 1, "limit_train_batches": 1},
    "trainer": {
        **{"max_epochs": 1, "limit_val_batches": 1, "accelerator": "cpu", "devices": 1},
        **{"enable_progress_bar": False, "logger": False, "enable_checkpointing": False},
    },
}


@dataclass(frozen=True)
class Mutation:
    """A config and what must happen to it.

    Args:
        name: what was changed.
        content: the file, as text or bytes.
        wrong: whether it must be refused; None if it may be refused or train.
    """

    name: str
    content: str | bytes
    wrong: bool | None = None


# Every class that a config can name, with arguments that work. ``BN`` marks those that need normalisation layers.
AGGREGATORS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"mu": 0.1},
    "FedNNNN": {"beta": 0.7, "gamma": 0.8, "granularity": "model"},
    "NormNorm": {"beta": 1.0, "granularity": "layer"},
    "Momentum": {"gamma": 0.9},
    "FedAdp": {"alpha": 5.0},
    "FedNS": {},
    "FedAvgLastFC": {},
    "FedDNA": {"steps": 2, "latent": 2, "hidden": 4, "lr": 0.001, "importance_lr": 0.01},
    "FedDyn": {"alpha": 0.01},
    "FedMA": {"sigma": 1.0, "sigma0": 1.0, "gamma": 7.0, "sweeps": 1, "estimate": "mean", "max_width": 40},
    "FedNova": {},
    "FedBN": {},
    "Scaffold": {},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"num_clients": 20, "sizes": "power_law", "exponent": 1.0, "min_samples": 2},
    "ClassesPerClient": {"num_clients": 20, "classes": 2, "sizes": "power_law", "exponent": 1.0, "min_samples": 2},
    "Dirichlet": {"num_clients": 20, "alpha": 0.5, "min_samples": 2},
    "Shards": {"num_clients": 20, "shards_per_client": 2},
    "FavouriteClass": {"num_clients": 20, "eta": 0.5, "shards_per_class": 20},
    "MixedNodes": {"classes": ["iid", 1, 2], "samples_per_node": 20, "min_samples": 2},
    "FreshDraw": {"num_clients": 5, "low": 4, "high": 9},
    "ByList": {"lists": [[0, 1, 2], [3, 4, 5]]},
}
SELECTIONS: dict[str, dict[str, Any]] = {
    "AllClients": {},
    "RandomClients": {"count": 2},
    "SequentialClients": {"fraction": 0.1},
}
CLIENT_CALLBACKS: dict[str, dict[str, Any]] = {
    "Ditto": {"lam": 1.0},
    "CosineAnnealing": {"horizon": "run", "eta_min": 0.0},
    "LearningRateDecay": {"factor": 0.9},
    "ProximalTerm": {"mu": 0.1},
}
SERVER_CALLBACKS: dict[str, dict[str, Any]] = {
    "ClientEvaluation": {"every_n_rounds": 1, "samples": "validation"},
    "AngleDiagnostics": {"alpha": 5.0, "max_curves": 3},
    "NormDiagnostics": {},
    "DivergenceDiagnostics": {"max_curves": 3},
    "GlobalTrainingLoss": {"clients": "cohort", "every_n_rounds": 1, "batch_size": 512},
    "Participation": {"max_curves": 3},
    "StopAtTarget": {"monitor": "val/accuracy", "target": 0.9},
    "EarlyStopping": {"monitor": "val/accuracy", "patience": 3, "mode": "max"},
    "ModelCheckpoint": {"monitor": "val/accuracy", "save_top_k": 1, "mode": "max"},
    "LearningRateMonitor": {"logging_interval": "epoch"},
}
NETS: dict[str, dict[str, Any]] = {
    "DigitsCNN": {"channels": [4, 4], "hidden": 8, "num_classes": 10, "batch_norm": True},
    "FullyConnected": {"inputs": 64, "hidden": [8], "num_classes": 10},
    "MLR": {"inputs": 64, "num_classes": 10},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    "Adam": {"lr": 0.001, "eps": 1e-8, "weight_decay": 0.0, "betas": [0.9, 0.99]},
    "Adagrad": {"lr": 0.01, "lr_decay": 0.0},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 1, "gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.0},
    "torch.optim.lr_scheduler.ReduceLROnPlateau": {"factor": 0.5, "patience": 1},
}
SOURCE = {"batch_size": 16, "train_fraction": 0.5, "validation_fraction": 0.1}
CLIENT = {
    **{"epochs": 1, "batch_size": 8, "execution": "trainer", "chunk": 2, "memory_format": "contiguous"},
    **{"clock": "round", "log_metrics": ["train/"], "limit_train_batches": 1, "gradient_clip_val": 1.0},
    **{"accumulate_grad_batches": 1, "precision": "32-true", "max_steps": -1, "min_epochs": 1},
}
TRAINER = {
    **{"max_epochs": 1, "limit_val_batches": 1, "check_val_every_n_epoch": 1, "num_sanity_val_steps": 0},
    **{"log_every_n_steps": 1, "precision": "32-true", "max_steps": -1, "max_time": "00:01:00:00"},
    **{"limit_train_batches": 1.0, "deterministic": True, "enable_model_summary": False},
    **{"default_root_dir": "here", "strategy": "auto", "accelerator": "cpu", "devices": 1, "num_nodes": 1},
}

#: values that fit no number
NOT_NUMBERS: dict[str, Any] = {"text": "abc", "list": [1, 2, 3], "mapping": {"a": 1}, "empty": "", "date": "2026-01-01"}
NOT_FINITE: dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
ODD_NUMBERS: dict[str, Any] = {
    **{"zero": 0, "minus one": -1, "half": 0.5, "huge": 10**30, "minus huge": -(10**30), "2**63": 2**63},
    **{"true": True, "tiny": 1e-320, "text number": "3", "text float": "1e-3", "hex": "0x10", "null": None},
}

#: what no slot accepts, with init_args that would leave a trace
ALIEN_CLASSES: dict[str, Any] = {
    "a function": {"class_path": "os.mkdir", "init_args": {"path": "executed"}},
    "a function by name": "subprocess.getoutput",
    "a shell": {"class_path": "subprocess.getoutput", "init_args": {"cmd": "mkdir executed"}},
    "a process": {"class_path": "subprocess.Popen", "init_args": {"args": ["mkdir", "executed"]}},
    "eval": {"class_path": "builtins.eval", "init_args": {"source": "__import__('os').mkdir('executed')"}},
    "a partial": {"class_path": "functools.partial", "init_args": {}},
    "a module": {"class_path": "os.path"},
    "another kind": {"class_path": "pathlib.Path"},
    "a class that is not there": {"class_path": "nowhere.Nothing"},
    "a name that is not there": {"class_path": "Nothing"},
    "no class path": {"init_args": {"a": 1}},
    "an empty class path": {"class_path": ""},
    "a number as class path": {"class_path": 3},
    "a list as class path": {"class_path": ["SGD"]},
    "a number": 3,
    "a list": [1, "two"],
    "a truth value": True,
    "an abstract class": {"class_path": "abc.ABC"},
}

#: slots for classes, with the class that a config may name there
SLOTS: dict[str, Any] = {
    "model": {"class_path": "Classifier", "init_args": {"net": {"class_path": "DigitsCNN"}}},
    "model.init_args.net": {"class_path": "DigitsCNN"},
    "model.init_args.optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05}},
    "model.init_args.lr_scheduler": {"class_path": "StepLR", "init_args": {"step_size": 1}},
    "data.source": {"class_path": "Digits"},
    "data.partition": {"class_path": "IID", "init_args": {"num_clients": 4}},
    "data.selection": {"class_path": "AllClients"},
    "data.label": 1,
    "client.callbacks.0": {"class_path": "LearningRateDecay", "init_args": {"factor": 0.9}},
    "client.profiler": "simple",
    "server.aggregator": {"class_path": "FedAvg"},
    "server.optimizer": {"class_path": "SGD", "init_args": {"lr": 1.0}},
    "server.transforms.0": {"class_path": "BernoulliMask", "init_args": {"keep": 0.5}},
    "trainer.callbacks.0": {"class_path": "Participation"},
    "trainer.logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}},
    "trainer.profiler": "simple",
    "trainer.strategy": "auto",
    "trainer.plugins": None,
}
#: where a number or a truth value means something
_ALSO_SCALARS = ("data.label", "trainer.logger", "trainer.plugins", "client.profiler", "trainer.profiler")


def base() -> dict[str, Any]:
    """Return the demo, shortened to one round of two clients."""
    config = yaml.safe_load((REPOSITORY / "configs" / "demo.yaml").read_text())
    for section, values in SHORT.items():
        config[section] = {**config[section], **copy.deepcopy(values)}
    return config


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a config in which one entry is different; ``client.callbacks.0`` is the only entry of a list."""
    config, value = copy.deepcopy(config), copy.deepcopy(value)
    if path.endswith(".0"):
        path, value = path.removesuffix(".0"), [value]
    *parents, last = path.split(".")
    node: Any = config
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return config


def without(config: dict[str, Any], path: str) -> dict[str, Any]:
    config = copy.deepcopy(config)
    node: Any = config
    *parents, last = path.split(".")
    for name in parents:
        node = node[name]
    del node[last]
    return config


def paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all entries of a config."""
    for name, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{name}"
        yield from paths(value, f"{prefix}{name}.")


def mutation(name: str, config: Any, wrong: bool | None = None) -> Mutation:
    return Mutation(name, yaml.safe_dump(config, sort_keys=False), wrong)


def structural() -> Iterator[Mutation]:
    """Yield configs with missing, unknown, empty and swapped parts."""
    config = base()
    for path in paths(config):
        yield mutation(f"without {path}", without(config, path), path in ("model", "data", "data.source") or None)
        node = config
        for name in path.split("."):
            node = node[name]
        for label, value in {"null": None, "a number": 3, "text": "abc", "a list": [1], "an empty list": []}.items():
            wrong = isinstance(node, dict) and (label != "null" or "." not in path) and not path.endswith("init_args")
            yield mutation(f"{path} is {label}", changed(config, path, value), wrong or None)
        yield mutation(f"{path} is an empty mapping", changed(config, path, {}))
        yield mutation(f"{path} nests itself", changed(config, path, {path.split(".")[-1]: node}), None)
        if isinstance(node, dict):
            for label, value in {"an empty mapping": {}, "null": None, "1": 1, "text": "a", "a list": []}.items():
                unknown = f"{path}.unknown"
                if path.endswith("optimizer.init_args") or path == "trainer":
                    unknown = f"{path}.unkown"
                yield mutation(f"{unknown} is {label}", changed(config, unknown, value), True)
    for label, value in {"an empty mapping": {}, "null": None, "1": 1, "a list": []}.items():
        yield mutation(f"an unknown section is {label}", {**config, "sever": value}, True)
    sections = list(config)
    for one in sections:
        for other in sections:
            if one < other:
                swapped = {**config, one: config[other], other: config[one]}
                yield mutation(f"{one} and {other} are swapped", swapped, True)
    yield mutation("a section in a section", changed(config, "server.client", {"epochs": 2}), True)
    yield mutation("the client in the server, empty", changed(config, "server.client", {}), True)
    yield mutation("a command as a section", {"fit": config}, None)
    for key in ("ckpt_path", "config", "weights_only", "print_config", "subcommand"):
        for value in (1, "nowhere", [], {}, True):
            yield mutation(f"{key} is {value!r}", {**config, key: value})
    for seed in (-1, 2**32, 2**70, 1.5, "abc", [1], float("nan"), None, True, False):
        for key in ("seed_everything", "data.seed"):
            wrong = True if seed in (-1, 2**70, "abc") or isinstance(seed, list) else None
            yield mutation(f"{key} is {seed}", changed(config, key, seed), wrong)


def _arguments() -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Yield what is configured, a config with it, the path of its arguments, and the arguments."""
    config = base()
    kinds = {
        "server.aggregator": AGGREGATORS,
        "data.partition": PARTITIONS,
        "data.selection": SELECTIONS,
        "client.callbacks.0": CLIENT_CALLBACKS,
        "trainer.callbacks.0": SERVER_CALLBACKS,
        "model.init_args.net": NETS,
        "model.init_args.optimizer": OPTIMIZERS,
        "server.optimizer": OPTIMIZERS,
        "model.init_args.lr_scheduler": SCHEDULERS,
        "server.transforms.0": {"BernoulliMask": {"keep": 0.5, "statistics": False}},
        "data.source": {"Digits": SOURCE},
        "model": {"Classifier": {"num_classes": 10, "normalisation": "batch", "top_k": 3}},
    }
    for slot, classes in kinds.items():
        for name, arguments in classes.items():
            start = config
            if name in ("FedBN", "FedDNA"):
                start = changed(config, "model.init_args.net.init_args", {"batch_norm": True})
            if name == "ModelCheckpoint":
                start = changed(config, "trainer.enable_checkpointing", True)
            full = dict(start["model"]["init_args"]) | arguments if slot == "model" else arguments
            yield f"{slot} {name}", changed(start, slot, {"class_path": name, "init_args": full}), slot, arguments
    yield "client", changed(config, "client", CLIENT), "client", CLIENT
    yield "trainer", changed(config, "trainer", {**config["trainer"], **TRAINER}), "trainer", TRAINER


def _with_argument(config: dict[str, Any], slot: str, name: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    node: Any = config
    for part in slot.split("."):
        node = node[int(part)] if isinstance(node, list) else node[part]
    if slot in ("client", "trainer"):
        node[name] = value
    else:
        node["init_args"][name] = value
    return config


def valid() -> Iterator[Mutation]:
    """Yield the configs whose arguments the others change; all of them train."""
    for label, config, _, _ in _arguments():
        yield mutation(f"{label} as it should be", config, False)


def arguments() -> Iterator[Mutation]:
    """Yield configs in which one argument has a wrong or an odd value."""
    for label, config, slot, values in _arguments():
        for name, right in values.items():
            is_number = isinstance(right, int | float) and not isinstance(right, bool)
            for kind, value in NOT_NUMBERS.items():
                fits = isinstance(right, str) and isinstance(value, str)
                fits = fits or (isinstance(right, list) and isinstance(value, list))
                wrong = None if fits or (slot, name) in _LOOSE else True
                yield mutation(f"{label}: {name} is {kind}", _with_argument(config, slot, name, value), wrong)
            for kind, value in NOT_FINITE.items():
                exempt = name in _MAY_BE_INFINITE or (label, kind) == ("data.partition Dirichlet", "inf")
                wrong = True if is_number and (slot, name) not in _LOOSE and not exempt else None
                yield mutation(f"{label}: {name} is {kind}", _with_argument(config, slot, name, value), wrong)
            for kind, value in ODD_NUMBERS.items():
                if (name, kind) not in _START_PROCESSES:
                    yield mutation(f"{label}: {name} is {kind}", _with_argument(config, slot, name, value))
            yield mutation(f"{label}: {name} is a list of itself", _with_argument(config, slot, name, [right]))


#: values with which Lightning would start the test process again
_START_PROCESSES = set(product(("devices", "num_nodes"), ("text number", "hex", "huge", "2**63")))
#: arguments of Lightning and torch that accept almost anything
_LOOSE = {
    *(("trainer", name) for name in ("default_root_dir", "max_time", "devices", "strategy", "deterministic")),
    *(("trainer", name) for name in ("precision", "accelerator", "num_sanity_val_steps")),
    *(("client", name) for name in ("precision", "log_metrics")),
}
_MAY_BE_INFINITE = ("target", "patience", "limit_val_batches")


def classes() -> Iterator[Mutation]:
    """Yield configs in which a slot has a class of another kind, a function or no class at all."""
    config = base()
    for slot, right in SLOTS.items():
        for kind, value in ALIEN_CLASSES.items():
            loose = slot in _ALSO_SCALARS and not isinstance(value, dict)
            yield mutation(f"{slot} is {kind}", changed(config, slot, value), None if loose else True)
        for other, value in SLOTS.items():
            if isinstance(value, dict) and other != slot:
                same_kind = (other == "model" and slot.endswith("net")) or other.endswith(slot.split(".")[-1])
                wrong = None if same_kind and not slot.endswith(".0") else True
                yield mutation(f"{slot} is what {other} should be", changed(config, slot, value), wrong)
        if isinstance(right, dict):
            for name, value in {"unknown": {}, "other": 1, "self": None}.items():
                spec = {**right, "init_args": {**right.get("init_args", {}), name: value}}
                yield mutation(f"{slot} has the argument {name}", changed(config, slot, spec), True)
            yield mutation(f"{slot} has init_args 1", changed(config, slot, {**right, "init_args": 1}), True)
            yield mutation(f"{slot} has dict_kwargs", changed(config, slot, {**right, "dict_kwargs": {"a": 1}}), True)
            yield mutation(f"{slot} has no init_args", changed(config, slot, {"class_path": right["class_path"]}))
    for name in ("SparseAdam", "LBFGS", "Muon", "Adafactor", "Rprop", "ASGD", "NAdam", "RAdam", "Adamax", "Adadelta"):
        for slot in ("model.init_args.optimizer", "server.optimizer"):
            for arguments in ({}, {"lr": -1}, {"lr": None}, {"lr": float("nan")}):
                spec = {"class_path": name, "init_args": arguments}
                yield mutation(f"{slot} is {name} {arguments}", changed(config, slot, spec), bool(arguments) or None)
    for name in (
        "Participation",
        "NormDiagnostics",
        "ClientEvaluation",
        "StopAtTarget",
        "FederatedServer",
        "RunSummary",
    ):
        spec = {"class_path": name, "init_args": SERVER_CALLBACKS.get(name, {})}
        yield mutation(f"{name} at clients", changed(config, "client.callbacks.0", spec), True)
    for name, init_args in CLIENT_CALLBACKS.items():
        spec = {"class_path": name, "init_args": init_args}
        yield mutation(f"{name} at the server", changed(config, "trainer.callbacks.0", spec), True)
    for name in ("EarlyStopping", "ModelCheckpoint", "StopAtTarget"):
        extra = {"target": 1.0} if name == "StopAtTarget" else {}
        spec = {"class_path": name, "init_args": {"monitor": "never/logged", **extra}}
        logged = changed(config, "trainer.enable_checkpointing", True)
        yield mutation(f"{name} on a metric that nobody logs", changed(logged, "trainer.callbacks.0", spec), True)
    for net, arguments in {
        **{"MnistCNN": {}, "CifarCNN": {}, "LeNet": {}, "FullyConnected": {}, "MLR": {"inputs": 63}, "BiLSTM": {}},
        **{"AlexNet32": {}, "FourLayerCNN": {}, "torch.nn.Identity": {}, "torch.nn.ReLU": {}, "torch.nn.Module": {}},
        **{"DigitsCNN": {"num_classes": 5}, "FedNSCNN": {}},
    }.items():
        spec = {"class_path": net, "init_args": arguments}
        wrong = None if net in ("FedNSCNN", "torch.nn.Identity", "torch.nn.ReLU") else True
        yield mutation(f"the net {net} {arguments} on digits", changed(config, "model.init_args.net", spec), wrong)
    yield mutation("five classes", changed(config, "model.init_args.num_classes", 5), True)
    for name in ("ddp", "fsdp", "deepspeed", "nonsense", "dp", "ddp_spawn", "single_device", "xla", 1):
        wrong = True if name in ("fsdp", "deepspeed", "nonsense", "dp", "xla", 1) else None
        if name not in ("ddp", "ddp_spawn"):
            yield mutation(f"strategy {name}", changed(config, "trainer.strategy", name), wrong)
    for name in ("gpu", "tpu", "nonsense", "cuda", "mps", 1, [], {}):
        yield mutation(f"accelerator {name}", changed(config, "trainer.accelerator", name), True)
    for value in (0, -1, -2, "abc", [], [0, 0], [7], {}, "0", 1.5, 10**30):
        wrong = None if value in (-1, "0") else True
        yield mutation(f"devices {value}", changed(config, "trainer.devices", value), wrong)
    for value in ("16-true", "64-true", "abc", 16, 7, "bf16-mixed", "transformer-engine"):
        for section in ("client", "trainer"):
            wrong = True if value in ("abc", 7) else None
            yield mutation(f"{section}.precision {value}", changed(config, f"{section}.precision", value), wrong)
    for key in ("trainer.default_root_dir", "server.client_folder"):
        for folder in ("/proc/nowhere", "/dev/null", "/dev/null/below", "\0", "x" * 300, "c.yaml", ""):
            wrong = True if folder.startswith(("/dev/null", "/proc", "\0", "xx")) else None
            logged = changed(changed(config, "trainer.logger", None), "trainer.enable_checkpointing", True)
            yield mutation(f"{key} is {folder[:20]!r}", changed(logged, key, folder), wrong)
    for key, value in {
        **{"client.max_steps": 0, "client.limit_train_batches": 0, "client.max_epochs": 3, "trainer.max_steps": 0},
        **{"client.fast_dev_run": True, "client.logger": True, "client.enable_checkpointing": True},
        **{"client.devices": 2, "client.accelerator": "gpu", "client.strategy": "ddp", "client.max_time": "abc"},
        **{"client.min_epochs": 10**30, "client.min_steps": 10**30, "client.overfit_batches": 1},
        **{"client.val_check_interval": 0.5, "client.reload_dataloaders_every_n_epochs": 1, "client.barebones": True},
        **{"client.gradient_clip_algorithm": "abc", "client.gradient_clip_val": "abc", "client.detect_anomaly": "abc"},
        **{"client.limit_train_batches": -0.5, "client.accumulate_grad_batches": 0, "client.profiler": "abc"},
        **{"trainer.barebones": True, "trainer.fast_dev_run": True, "trainer.overfit_batches": 1},
        **{"trainer.limit_train_batches": 0, "trainer.limit_val_batches": -1, "trainer.max_time": "abc"},
        **{"trainer.val_check_interval": 0.5, "trainer.accumulate_grad_batches": 2, "trainer.gradient_clip_val": 1},
        **{"trainer.reload_dataloaders_every_n_epochs": 1, "trainer.reload_dataloaders_every_n_epochs.": 1},
        **{"trainer.min_epochs": 10, "trainer.profiler": "abc", "trainer.sync_batchnorm": True},
        **{"trainer.num_nodes": 0, "trainer.num_nodes.": -1, "trainer.detect_anomaly": True, "trainer.benchmark": 3},
        **{"trainer.gradient_clip_algorithm": "abc", "trainer.inference_mode": False, "trainer.logger": True},
        **{"trainer.use_distributed_sampler": False, "trainer.plugins": "abc"},
        **{"trainer.max_epochs": 0, "trainer.check_val_every_n_epoch": 0},
    }.items():
        key = key.rstrip(".")
        wrong = True if value in ("abc",) or (key, value) in _WRONG_FLAGS else None
        yield mutation(f"{key} is {value}", changed(config, key, value), wrong)


_WRONG_FLAGS = {
    *(("client.max_steps", 0), ("client.limit_train_batches", 0), ("client.max_epochs", 3)),
    *(("client.limit_train_batches", -0.5), ("trainer.limit_train_batches", 0), ("trainer.limit_val_batches", -1)),
    *(("client.devices", 2), ("client.accelerator", "gpu"), ("client.strategy", "ddp")),
    *(("trainer.max_steps", 0), ("trainer.max_epochs", 0)),
}


def files() -> Iterator[Mutation]:
    """Yield files that are no configs."""
    text = yaml.safe_dump(base(), sort_keys=False)
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    wrong: dict[str, str | bytes] = {
        "empty": "",
        "a comment": "# nothing",
        "null": "null",
        "a number": "3",
        "a list": "[1, 2]",
        "text": "abc",
        "not UTF-8": text.encode() + b"# \xff\xfe",
        "Latin-1": "server: {weighting: \u00fc}".encode("latin-1"),
        "UTF-16": text.encode("utf-16"),
        "zeros": b"\0" * 100,
        "binary": bytes(range(256)),
        "tabs": "client:\n\tepochs: 1",
        "deep lists": "client: " + "[" * 5000 + "]" * 5000,
        "deep mappings": "client: " + "{a: " * 3000 + "1" + "}" * 3000,
        "a bomb": bomb,
        "a bomb in a section": f"{text}\nx: 1\n{bomb}",
        "a recursive anchor": "client: &a {callbacks: *a}",
        "a recursive list": "trainer: {callbacks: &a [*a]}",
        "an unknown alias": "client: *a",
        "unclosed": "client: {epochs: 1",
        "two documents": f"{text}\n---\n{text}",
        "a Python tag": "client: !!python/object/apply:os.mkdir [executed]",
        "an unknown tag": "client: !a {epochs: 1}",
        "passwords": Path("/etc/passwd").read_bytes(),
        "a long line": "x" * 100_000,
        "JSON that is cut": '{"client": {"epochs"',
        "keys of several types": "{1: 2, null: 3, [1]: 4}",
        "merge": "client: {<<: 3}",
        "a carriage return": "client:\r  epochs: 1\r",
        "a directive": "%YAML 9.9\n---\nclient: {epochs: 1}",
        "XML": "<client><epochs>1</epochs></client>",
        "Python": "import os\nos.mkdir('executed')\n",
        "many keys": "\n".join(f"key{n}: 1" for n in range(3000)),
        "an empty key": "'': 1",
        "dots": "'client..epochs': 1",
    }
    for name, content in wrong.items():
        yield Mutation(f"a file of {name}", content, True)
    yield Mutation("a file with a byte order mark", b"\xef\xbb\xbf" + text.encode(), None)
    yield Mutation("a file with a section twice", f"{text}\nclient: {{epochs: 2}}\n", True)
    yield Mutation("a file with a key twice", text.replace("epochs: 1\n", "epochs: 1\n  epochs: 2\n", 1), True)
    yield Mutation("a file with Windows line ends", text.replace("\n", "\r\n"), False)


def pairs(count: int, seed: int = 0) -> Iterator[Mutation]:
    """Yield configs with two random changes each, which may cancel out."""
    generator = random.Random(seed)
    config = base()
    everything = list(paths(config))
    values: list[Any] = [*NOT_NUMBERS.values(), *NOT_FINITE.values(), *ODD_NUMBERS.values(), *SLOTS.values()]
    values += list(ALIEN_CLASSES.values())
    for number in range(count):
        mutated = config
        done = []
        for _ in range(2):
            path, value = generator.choice(everything), generator.choice(values)
            if path.endswith(("max_epochs", "epochs")) and value in (-1, 10**30, 2**63):
                continue
            try:
                mutated = changed(mutated, path, value)
            except (AttributeError, TypeError, KeyError):
                continue
            done.append(f"{path}={str(value)[:40]}")
        yield mutation(f"pair {number}: {', '.join(done)}", mutated)


def every_mutation(pairs_of_changes: int = 1000) -> list[Mutation]:
    """Return all mutations, always in the same order."""
    return [*valid(), *structural(), *arguments(), *classes(), *files(), *pairs(pairs_of_changes)]


@contextmanager
def one_parser() -> Iterator[None]:
    """Let all commands share one parser, because filling it takes longer than parsing most configs."""
    from fl_lightning.cli.app import FederatedCLI

    setup_parser = FederatedCLI.setup_parser
    shared: dict[str, Any] = {}

    def setup(cli: FederatedCLI, *args: Any) -> None:
        if not shared:
            before = set(vars(cli))
            setup_parser(cli, *args)
            shared.update({name: value for name, value in vars(cli).items() if name not in before})
            shared["_command_parsers"] = cli._command_parsers
        vars(cli).update(shared)

    FederatedCLI.setup_parser = setup  # type: ignore[method-assign]
    try:
        yield
    finally:
        del FederatedCLI.setup_parser


class _Hang(BaseException):
    pass


class _Enough(BaseException):
    """Raised after two rounds of a run that has many."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Hang

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run(mutated: Mutation, folder: Path) -> tuple[Outcome, str]:
    """Run ``fit`` with a mutated config in an empty folder; return how it ended and the error."""
    from fl_lightning.callbacks import FederatedServer
    from fl_lightning.cli.main import main

    content = mutated.content
    (folder / "c.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    rounds = []
    run_round = FederatedServer.run_round

    def counted(*args: Any) -> None:
        if len(rounds) == 2:
            raise _Enough
        run_round(*args)
        rounds.append(1)

    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    FederatedServer.run_round = counted  # type: ignore[method-assign]
    try:
        with _limited(PATIENCE), redirect_stdout(out), redirect_stderr(err):
            main(["fit", "--config", "c.yaml"])
        code = 0
    except SystemExit as exit:
        code = exit.code
    except _Enough:
        code = 0
    except _Hang:
        return "hang", ""
    except BaseException as error:
        return ("traceback after a round" if rounds else "traceback"), f"{type(error).__name__}: {error}"
    finally:
        FederatedServer.run_round = run_round  # type: ignore[method-assign]
        os.chdir(before)
    if (folder / "executed").exists():
        return "wrongly accepted", "the config executed a function"
    if code == 0:
        return ("wrongly accepted" if mutated.wrong else "trained"), ""
    errors = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if code != 2 or len(errors) != 1 or err.getvalue().splitlines()[-1] != errors[0] or len(errors[0]) > 2000:
        return "traceback", f"exit code {code}: {err.getvalue()[-300:]}"
    return ("one line after a round" if rounds else "one line"), errors[0]
