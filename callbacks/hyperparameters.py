"""Hyper-parameters and final metrics, for TensorBoard's HParams tab."""

import inspect
from collections.abc import Mapping
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers import TensorBoardLogger

from fl_lightning.module import FederatedModule
from fl_lightning.tags import evaluated

Scalar = int | float | str


class HyperParameters(Callback):
    """Fills TensorBoard's HParams tab: how the run is set up, and the last value of every validation metric.

    The parameters are those of the model, the clients, the server, the partition and the selection, and the seed. They
    are there when the first round is over.
    """

    def __init__(self) -> None:
        self._written = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before Lightning logs hyper-parameters by itself: its placeholder ``hp_metric`` would take the tab."""
        self._written = False
        for logger in _loggers(trainer):
            logger._default_hp_metric = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each round; once the first is over, the names of the metrics are known."""
        if self._written or not trainer.is_global_zero:
            return
        self._written = True
        metrics = evaluated(trainer.callback_metrics)
        metrics.sort(key=lambda name: ("loss" in name, name))  # the first few are shown
        metrics += [name for name in trainer.callback_metrics if name.startswith("train")]
        for logger in _loggers(trainer):
            self._write(logger, run_parameters(trainer, pl_module), metrics, end=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called at the end: the session is over."""
        if self._written:
            for logger in _loggers(trainer):
                self._write(logger, {}, [], end=True)

    @staticmethod
    def _write(logger: TensorBoardLogger, parameters: dict[str, Scalar], metrics: list[str], end: bool) -> None:
        # Not by logger.log_hyperparams, which writes the metrics' values once more: TensorBoard takes the last ones.
        from torch.utils.tensorboard.summary import hparams

        experiment, session_start, session_end = hparams(parameters, dict.fromkeys(metrics))
        writer = logger.experiment._get_file_writer()
        for summary in [session_end] if end else [experiment, session_start]:
            writer.add_summary(summary, 0)
        logger.experiment.flush()


def run_parameters(trainer: Trainer, pl_module: LightningModule) -> dict[str, Scalar]:
    """How a run is set up, by name. A part is told in one: ``aggregator`` is ``FedNNNN(beta=0.7, gamma=0.8)``.

    So runs of different algorithms have the same names: TensorBoard shows those of one run only, for all.
    """
    model = {name: value for name, value in pl_module.hparams_initial.items() if not name.startswith("_")}
    parameters = {f"model.{name}": value for name, value in model.items()}
    parameters |= {f"model.{name}.lr": rate for name, value in model.items() if (rate := _learning_rate(value))}
    if isinstance(pl_module, FederatedModule):
        server, data = pl_module.server, trainer.datamodule  # type: ignore[attr-defined]
        optimizer = trainer.optimizers[0]
        server_optimizer = f"{type(optimizer).__name__}(lr={optimizer.defaults['lr']})"
        parameters |= {
            "aggregator": server.aggregator,
            "client.batch_size": server.client.batch_size or data.data.batch_size,
            "client.callbacks": server.client.callbacks,
            "client.epochs": server.client.epochs,
            "data": type(data.source).__name__,
            "partition": data.partition or f"ready-made, {data.num_clients} clients",
            "seed": data.seed,
            "selection": data.selection,
            "server.optimizer": server_optimizer if server.optimizer else None,
            "transforms": server.transforms,
            "weighting": server.weighting,
        }
    return {name: _told(value) for name, value in parameters.items()}


def _told(value: Any) -> Scalar:
    """A number or a text as it is; an object by its class and what it was made with."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping) and "class_path" in value:  # how the command line makes an object
        return _call(str(value["class_path"]).rpartition(".")[2], value.get("init_args") or {})
    if isinstance(value, list | tuple):
        return ", ".join(str(_told(item)) for item in value) or "none"
    if value is None:
        return "none"
    kept = {name: getattr(value, name, None) for name in inspect.signature(type(value)).parameters}
    return _call(type(value).__name__, kept)


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in arguments.items() if isinstance(value, int | float | str)}
    told = ", ".join(f"{key}={value}" for key, value in plain.items() if value is not False)
    return f"{name}({told})" if told else name


def _learning_rate(value: Any) -> float | None:
    return (value.get("init_args") or {}).get("lr") if isinstance(value, Mapping) else None


def _loggers(trainer: Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
