"""Right configs: the demo, shortened, with each class of the package in its slot and with all its arguments."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.cli.mutations.base import Mutation, base, changed, entry

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
    "CoordinateMedian": {},
    "TrimmedMean": {"fraction": 0.2},
    "Krum": {"fraction": 0.2},
    "MultiKrum": {"fraction": 0.2},
    "GeometricMedian": {"iterations": 3, "smoothing": 1e-6},
    "NormClipping": {"max_norm": 1.0},
    "DPFedAvg": {"max_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
}
_SIZES = {"sizes": "power_law", "exponent": 1.0, "min_samples": 2}
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"num_clients": 20, **_SIZES},
    "ClassesPerClient": {"num_clients": 20, "classes": 2, **_SIZES},
    "Dirichlet": {"num_clients": 20, "alpha": 0.5, "min_samples": 2},
    "Shards": {"num_clients": 20, "shards_per_client": 2},
    "FavouriteClass": {"num_clients": 20, "eta": 0.5, "shards_per_class": 20},
    "MixedNodes": {"classes": ["iid", 1, 2], "samples_per_node": 20, **_SIZES},
    "FreshDraw": {"num_clients": 5, "low": 4, "high": 9},
    "ByList": {"lists": [[0, 1, 2], [3, 4, 5]]},
}
SELECTIONS: dict[str, dict[str, Any]] = {
    "AllClients": {},
    "RandomClients": {"count": 2},
    "SequentialClients": {"fraction": 0.1},
    "PoissonClients": {"rate": 0.5},
}
CLIENT_CALLBACKS: dict[str, dict[str, Any]] = {
    "Ditto": {"lam": 1.0},
    "CosineAnnealing": {"horizon": "run", "eta_min": 0.0},
    "LearningRateDecay": {"factor": 0.9},
    "ProximalTerm": {"mu": 0.1},
    "LabelFlip": {"share": 0.2, "classes": 10, "label": 1},
}
TRANSFORMS: dict[str, dict[str, Any]] = {
    "BernoulliMask": {"keep": 0.5, "statistics": False},
    "TopK": {"fraction": 0.1},
    "QSGD": {"levels": 7, "bucket": 512},
    "SignFlip": {"share": 0.2, "scale": 1.0},
    "ScaledUpdate": {"share": 0.2, "scale": 10.0},
    "GaussianNoise": {"share": 0.2, "std": 1.0},
    "ALittleIsEnough": {"share": 0.2, "z": 1.0},
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
SOURCE = {"batch_size": 16, "train_fraction": 0.5, "validation_fraction": 0.1, "evaluation_batch_size": 100}
CLIENT = {
    **{"epochs": 1, "batch_size": 8, "execution": "trainer", "chunk": 2, "memory_format": "contiguous"},
    **{"clock": "round", "log_metrics": ["train/"], "limit_train_batches": 1, "gradient_clip_val": 1.0},
    **{"accumulate_grad_batches": 1, "precision": "32-true", "max_steps": -1, "min_epochs": 1},
    **{"on_error": "raise", "timeout": 60.0, "dropout": 0.1},
}
SERVER = {"weighting": "samples", "min_clients": 1, "client_folder": "clients"}
DATA = {"seed": 1, "label": 1}
FEDERATION = {"num_clients": 2, "wait": 300.0, "timeout": 600.0, "client_memory": "node"}
TRAINER = {
    **{"max_epochs": 1, "limit_val_batches": 1, "check_val_every_n_epoch": 1, "num_sanity_val_steps": 0},
    **{"log_every_n_steps": 1, "precision": "32-true", "max_steps": -1, "max_time": "00:01:00:00"},
    **{"limit_train_batches": 1.0, "deterministic": True, "enable_model_summary": False},
    **{"default_root_dir": "here", "strategy": "auto", "accelerator": "cpu", "devices": 1, "num_nodes": 1},
}

#: slots for classes, with the classes of the package, of Lightning and of torch that fit
_CLASSES: dict[str, dict[str, dict[str, Any]]] = {
    "server.aggregator": AGGREGATORS,
    "data.partition": PARTITIONS,
    "data.selection": SELECTIONS,
    "client.callbacks.0": CLIENT_CALLBACKS,
    "trainer.callbacks.0": SERVER_CALLBACKS,
    "server.transforms.0": TRANSFORMS,
    "model.init_args.net": NETS,
    "model.init_args.optimizer": OPTIMIZERS,
    "server.optimizer": OPTIMIZERS,
    "model.init_args.lr_scheduler": SCHEDULERS,
    "data.source": {"Digits": SOURCE},
    "model": {"Classifier": {"num_classes": 10, "normalisation": "batch", "top_k": 3}},
}
_SECTIONS = {"client": CLIENT, "trainer": TRAINER, "server": SERVER, "data": DATA, "federation": FEDERATION}


@dataclass(frozen=True)
class RightConfig:
    """A config that trains.

    Args:
        label: what it configures.
        config: the config.
        slot: the section, or the slot for a class.
        arguments: the arguments there that mutations change.
    """

    label: str
    config: dict[str, Any]
    slot: str
    arguments: dict[str, Any]

    def with_argument(self, name: str, value: Any) -> dict[str, Any]:
        """Return the config with another value of one argument."""
        config = copy.deepcopy(self.config)
        node = entry(config, self.slot)
        (node if self.slot in _SECTIONS else node["init_args"])[name] = value
        return config


def right_configs() -> Iterator[RightConfig]:
    """Yield one for every class and every section."""
    for slot, classes in _CLASSES.items():
        for name, arguments in classes.items():
            start = _needed_by(name)
            full = {**start["model"]["init_args"], **arguments} if slot == "model" else arguments
            config = changed(start, slot, {"class_path": name, "init_args": full})
            yield RightConfig(f"{slot} {name}", config, slot, arguments)
    for section, arguments in _SECTIONS.items():
        config = changed(base(), section, {**base().get(section, {}), **arguments})
        yield RightConfig(section, config, section, arguments)


def valid() -> Iterator[Mutation]:
    """Yield the configs whose arguments the others change, as mutations; all of them train."""
    for right in right_configs():
        yield Mutation(f"{right.label} as it should be", right.config, False)


def _needed_by(name: str) -> dict[str, Any]:
    """Return the demo, changed so that a class can be used in it."""
    if name in ("FedBN", "FedDNA"):
        return changed(base(), "model.init_args.net.init_args", {"batch_norm": True})
    if name == "ModelCheckpoint":
        return changed(base(), "trainer.enable_checkpointing", True)
    if name == "PoissonClients":  # a round may have no client
        return changed(base(), "server.aggregator", {"class_path": "DPFedAvg", "init_args": AGGREGATORS["DPFedAvg"]})
    return base()
