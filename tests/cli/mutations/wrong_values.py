"""Values to put into configs where they do not belong."""

from typing import Any

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
