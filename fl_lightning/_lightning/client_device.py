"""Skipping what Lightning does for every fit, but the many short fits of clients do not need.

For every fit, Lightning empties CUDA's cache twice, announces the visible GPUs, asks the other ranks about the number
of batches with tensors on the device, copies metrics to the host, and reads the handlers of all signals. For clients,
which train for a few steps each, this could take longer than the training.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch

from fl_lightning._lightning.names import CUDAAccelerator, SingleDeviceStrategy, Trainer


class _ClientCUDA(CUDAAccelerator):
    """Leaves CUDA as the server's Trainer has set it up."""

    def setup(self, trainer: Trainer) -> None:
        """Keep the cache, and announce nothing."""

    def teardown(self) -> None:
        """Keep the cache."""


def client_accelerator(device: torch.device) -> Any:
    """Return what a client's Trainer takes as ``accelerator``."""
    return _ClientCUDA() if device.type == "cuda" else device.type


class HostCounting(SingleDeviceStrategy):
    """A strategy that can claim to be on the CPU while Lightning counts batches, which needs no device."""

    _counts_on_host = False

    @property
    def root_device(self) -> torch.device:
        """The device of the model, or the CPU within :meth:`counting_on_host`."""
        return _HOST if self._counts_on_host else super().root_device

    @contextmanager
    def counting_on_host(self) -> Iterator[None]:
        """Claim to be on the CPU."""
        self._counts_on_host = True
        try:
            yield
        finally:
            self._counts_on_host = False


_HOST = torch.device("cpu")


def avoid_waiting(trainer: Trainer) -> None:
    """Replace the methods of a client's Trainer that waste time. Copies of the Trainer keep the replacements.

    The Trainer must have a :class:`HostCounting` strategy.
    """
    connector: Any = trainer._logger_connector
    epochs: Any = trainer.fit_loop.epoch_loop
    trainer._checkpoint_connector.resume_end = _nothing  # type: ignore[method-assign]
    trainer._signal_connector._get_current_signal_handlers = _handler_of_sigterm  # type: ignore[method-assign]
    connector.log_metrics = MethodType(_keep_metrics, connector)
    connector.teardown = _nothing
    epochs.teardown = MethodType(_teardown_validation, epochs)
    for loop in (trainer.fit_loop, trainer.validate_loop):
        loop.setup_data = MethodType(_setup_data, loop)  # type: ignore[method-assign]


def _nothing() -> None:
    """Do nothing where Lightning would empty CUDA's cache or copy metrics to the host."""


def _handler_of_sigterm() -> dict[int, Any]:
    """Return the only handler that a client's Trainer replaces and restores; Lightning would ask for sixty."""
    return {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}


def _keep_metrics(connector: Any, metrics: dict[str, Any], step: int | None = None) -> None:
    """Keep metrics for ``trainer.logged_metrics`` without reading their values, because a client has no log."""
    connector._logged_metrics.update(metrics)


def _teardown_validation(epochs: Any) -> None:
    """Release what validation used, and leave the metrics of the training steps on the device."""
    epochs.val_loop.teardown()


def _setup_data(loop: Any) -> None:
    """Count the batches on the host."""
    with loop.trainer.strategy.counting_on_host():
        type(loop).setup_data(loop)
