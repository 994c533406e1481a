"""Hyper-parameters and final metrics, for TensorBoard's HParams tab."""

import functools
import os
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
import torch

from fl_lightning._lightning.hparams import without_placeholder_metric
from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.server_trainer import evaluated_metrics
from fl_lightning._lightning.tensorboard import tensorboard_loggers, write_summaries
from fl_lightning.callbacks.run.decoration import decoration
from fl_lightning.core.arguments import kept_arguments
from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.module import FederatedModule

Scalar = int | float | str

#: how many items of a collection are shown, and to which depth
_MAX_ITEMS = 20
_MAX_DEPTH = 3


class HyperParameters(Callback):
    """Fills TensorBoard's HParams tab: how the run is set up, and the last value of every validation metric.

    The tab shows the parameters of the model, the clients, the server, the partition and the selection, and the seed,
    once the first validation is over. Reports use it to find out which metrics the module logged in validation.
    """

    def __init__(self) -> None:
        self._written = False
        self._trained = False

    @decoration
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep Lightning from logging its placeholder ``hp_metric``, which would occupy the tab."""
        self._written = False
        self._trained = False
        without_placeholder_metric(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember that there are rounds to train."""
        self._trained = True

    @decoration
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the parameters and the names of metrics after the first validation, when the names are known."""
        metrics = evaluated_metrics(trainer)
        if trainer.is_global_zero and not self._written and (metrics or not trainer.enable_validation):
            self._write(trainer, pl_module, metrics)

    @decoration
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the session. A resumed run that had already finished keeps what it wrote before."""
        if not trainer.is_global_zero or not self._trained:
            return
        if not self._written:
            self._write(trainer, pl_module, [])
        from torch.utils.tensorboard.summary import hparams

        _, _, session_end = hparams({}, {})
        for logger in tensorboard_loggers(trainer):
            write_summaries(logger, [session_end])

    def _write(self, trainer: Trainer, pl_module: LightningModule, metrics: list[str]) -> None:
        self._written = True
        metrics.sort(key=lambda name: (smaller_is_better(name), name))  # TensorBoard shows the first few
        metrics += [name for name in ("train/loss",) if name in trainer.callback_metrics]
        from torch.utils.tensorboard.summary import hparams

        # logger.log_hyperparams would also write values for the metrics, and TensorBoard would show those.
        experiment, session_start, _ = hparams(run_parameters(trainer, pl_module), dict.fromkeys(metrics))
        for logger in tensorboard_loggers(trainer):
            write_summaries(logger, [experiment, session_start])


def run_parameters(trainer: Trainer, pl_module: LightningModule) -> dict[str, Scalar]:
    """Return the settings of a run, by name.

    Each part is one string, such as ``aggregator: FedNNNN(beta=0.7, gamma=0.8)``, so that runs of different algorithms
    share a column: TensorBoard uses the columns of one run for all runs. The numeric arguments of aggregator, client
    and partition follow as separate columns, such as ``aggregator.beta``.
    """
    model = {name: value for name, value in pl_module.hparams_initial.items() if not str(name).startswith("_")}
    parameters = {f"model.{name}": value for name, value in model.items()}
    parameters |= {f"model.{name}.lr": rate for name, value in model.items() if (rate := _learning_rate(value))}
    if isinstance(pl_module, FederatedModule):
        server, data = pl_module.server, trainer.datamodule  # type: ignore[attr-defined]
        optimizer = trainer.optimizers[0]
        learning_rate = {name: value for name, value in optimizer.defaults.items() if name == "lr"}
        server_optimizer = _format_call(type(optimizer).__name__, learning_rate)
        parameters |= {
            "aggregator": server.aggregator,
            "client.callbacks": server.client.callbacks,
            "data": type(data.source).__name__,
            "partition": data.partition or f"ready-made, {data.num_clients} clients",
            "seed": data.seed,
            "selection": data.selection,
            "server.optimizer": server_optimizer if server.optimizer else None,
            "transforms": server.transforms,
            "weighting": server.weighting,
        }
        parts = {"aggregator": server.aggregator, "client": server.client, "partition": data.partition}
        for part, instance in parts.items():
            parameters |= {f"{part}.{name}": value for name, value in _arguments(instance).items() if _is_number(value)}
        parameters["client.batch_size"] = server.client.batch_size or data.data.batch_size
    return {name: _format_value(value) for name, value in parameters.items()}


def _format_value(value: Any, depth: int = 0) -> Scalar:
    """Return a value as a number or string that TensorBoard can show. This works for every object.

    Numbers and strings stay as they are, collections list their items, and any other object is shown as its class with
    its constructor arguments.
    """
    try:
        return _describe(value, depth)
    except Exception:  # an attribute or method of the user's object failed
        return type(value).__name__


def _describe(value: Any, depth: int) -> Scalar:
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # TensorBoard accepts only valid Unicode
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if isinstance(value, float) or abs(value) < 2**63 else str(value)
    if isinstance(value, bool | complex | os.PathLike | torch.device | torch.dtype):
        return str(value)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        shape = tuple(value.shape)
        return _format_value(value.item()) if shape == () else f"{type(value).__name__} of shape {shape}"
    if isinstance(value, functools.partial):
        return _format_call(str(_format_value(value.func)), value.keywords)
    if isinstance(value, Mapping) and "class_path" in value:  # how the command line describes an object
        return _format_call(str(value["class_path"]).rpartition(".")[2], value.get("init_args") or {})
    if isinstance(value, Mapping | list | tuple | AbstractSet):
        return _format_items(value, depth) if depth < _MAX_DEPTH else type(value).__name__
    if isinstance(value, type) or (callable(value) and hasattr(value, "__name__")):
        return str(value.__name__)
    return _format_call(type(value).__name__, _arguments(value))


def _format_items(values: Collection[Any], depth: int) -> str:
    if isinstance(values, Mapping):
        items = [f"{key}={_format_value(value, depth + 1)}" for key, value in islice(values.items(), _MAX_ITEMS)]
    elif isinstance(values, AbstractSet):
        items = sorted(str(_format_value(value, depth + 1)) for value in values)[:_MAX_ITEMS]
    else:
        items = [str(_format_value(value, depth + 1)) for value in islice(values, _MAX_ITEMS)]
    text = ", ".join(items + ["..."] * (len(values) > _MAX_ITEMS)) or "none"
    return f"({text})" if depth else text


def _format_call(name: str, arguments: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in arguments.items() if isinstance(value, int | float | str)}
    shown = ", ".join(f"{key}={_format_value(value)}" for key, value in plain.items() if value is not False)
    return f"{name}({shown})" if shown else name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _arguments(instance: object) -> dict[str, Any]:
    """Return the arguments that an object keeps, or none if reading them fails."""
    try:
        return kept_arguments(instance)
    except Exception:
        return {}


def _learning_rate(value: Any) -> float | None:
    """Return the learning rate of an optimiser that the command line describes."""
    arguments = value.get("init_args") if isinstance(value, Mapping) else None
    rate = arguments.get("lr") if isinstance(arguments, Mapping) else None
    return rate if _is_number(rate) else None
