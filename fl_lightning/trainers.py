"""Short-lived Trainers: one a client, beside the server's own."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning import Trainer
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer.connectors import callback_connector


def short_lived_trainer(device: torch.device, **flags: Any) -> Trainer:
    """A Trainer on one device that leaves no trace: no logs, no checkpoints, no bar, no part in a process group."""
    return Trainer(
        accelerator=device.type,
        devices=1,
        num_nodes=1,
        strategy=_ResidentStrategy(device),
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


class _ResidentStrategy(SingleDeviceStrategy):
    """Leaves the model where it is: the next client uses the same tensors."""

    def model_to_device(self) -> None:
        pass

    def teardown(self) -> None:
        self.optimizers = []
        self.precision_plugin.teardown()


@contextmanager
def quick_starts() -> Iterator[None]:
    """Trainers start without announcing themselves, and without a search of all installed packages for callbacks.

    Those that a package adds to every Trainer are the server's; a client has what its configuration says.
    """
    logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    level, search = logger.level, callback_connector._load_external_callbacks
    logger.setLevel(logging.WARNING)
    callback_connector._load_external_callbacks = lambda group: []
    try:
        yield
    finally:
        logger.setLevel(level)
        callback_connector._load_external_callbacks = search
