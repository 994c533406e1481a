"""Short-lived Trainers: one a client, beside the server's own."""

import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer import setup
from pytorch_lightning.trainer.connectors import callback_connector
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import Optimizer


def short_lived_trainer(strategy: "ResidentStrategy", **flags: Any) -> Trainer:
    """A Trainer on one device that leaves no trace: no logs, no checkpoints, no bar, no part in a process group."""
    flags.setdefault("profiler", _NoProfiler())
    return Trainer(
        accelerator=strategy.root_device.type,
        devices=1,
        num_nodes=1,
        strategy=strategy,
        plugins=[LightningEnvironment()],
        logger=DummyLogger(),  # a client may touch self.logger.experiment
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_autolog_hparams=False,
        use_distributed_sampler=False,
        barebones=False,
        **flags,
    )


class _NoProfiler(PassThroughProfiler):
    """Lightning's own enters and leaves a generator for every hook, to do nothing."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


_NOTHING = nullcontext()


class ResidentStrategy(SingleDeviceStrategy):
    """Leaves the model where it is, as the next client uses the same tensors, and notes what a client reports.

    A callback could note it too, but would be called ten times a step: for a small net that is as long as the step.

    Args:
        device: where the model is.
        batches_in_place: whether batches come on the device and no hook of module or data wants to see them.
    """

    def __init__(self, device: torch.device, batches_in_place: bool = False) -> None:
        super().__init__(device)
        self.batches_in_place = batches_in_place
        self.learning_rate: float | None = None
        self._loss_sum: Tensor | None = None
        self._losses = 0

    @property
    def mean_loss(self) -> Tensor | None:
        """Over the training steps. On the device: reading every loss would make a GPU wait."""
        return None if self._loss_sum is None else self._loss_sum / self._losses

    def model_to_device(self) -> None:
        pass

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        return batch if self.batches_in_place else super().batch_to_device(batch, device, dataloader_idx)

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        for config in self.lr_scheduler_configs:
            if config.monitor is not None and re.match(r"val(id|idation)?(/|_|$)", config.monitor):
                raise MisconfigurationException(
                    f"a learning-rate scheduler monitors {config.monitor!r}, which a client never sees, for validation"
                    " is the server's: monitor a training metric, or use a scheduler without a monitor"
                )

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        output = super().training_step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, dict) else output
        if isinstance(loss, Tensor):
            loss = loss.detach().float()
            self._loss_sum = loss if self._loss_sum is None else self._loss_sum + loss
            self._losses += 1
        return output

    def optimizer_step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.learning_rate = float(optimizer.param_groups[0]["lr"])  # a scheduler may change it after the last step
        return super().optimizer_step(optimizer, *args, **kwargs)

    def teardown(self) -> None:
        self.optimizers = []
        self.precision_plugin.teardown()


@contextmanager
def quick_starts() -> Iterator[None]:
    """Trainers start without announcing themselves, and without a search for GPUs and for packages with callbacks.

    Callbacks that a package adds to every Trainer are the server's; a client has what its configuration says.
    """
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with (
            patch.object(callback_connector, "_load_external_callbacks", lambda group: []),
            patch.object(setup, "_log_device_info", lambda trainer: None),
            patch.object(LightningModule, "__setattr__", _quick_setattr),
        ):
            yield
    finally:
        logger.setLevel(level)


def _quick_setattr(module: LightningModule, name: str, value: Any) -> None:
    """Lightning notes the name of the hook it is in forty times a step: no tensor, no module, so nothing to check."""
    if name == "_current_fx_name":
        module.__dict__[name] = value
    else:
        nn.Module.__setattr__(module, name, value)
