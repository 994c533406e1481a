"""Stochastic weight averaging over the rounds of a server."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from fl_lightning._lightning.names import LightningModule, StochasticWeightAveraging


def average_statistics(callback: StochasticWeightAveraging) -> None:
    """Let the callback average the statistics of BatchNorm together with the weights.

    By default, it trains for one more epoch to compute the statistics of the averaged weights. For a server, that would
    be a further round, which trains the clients and replaces the average.
    """
    kind = type(callback)
    callback.pl_module_contains_batch_norm = _no_batch_norm  # type: ignore[method-assign]
    callback.update_parameters = partial(_update, kind.update_parameters)  # type: ignore[method-assign]
    callback.transfer_weights = partial(_transfer, kind.transfer_weights)  # type: ignore[method-assign]


def _no_batch_norm(pl_module: LightningModule) -> bool:
    """Return False, so that the callback adds no epoch for BatchNorm."""
    return False


@torch.no_grad()
def _update(update_parameters: Callable, average: nn.Module, model: nn.Module, count: Tensor, avg_fn: Callable) -> None:
    for mean, value in zip(_statistics(average), _statistics(model), strict=True):
        value = value.to(mean.device)
        mean.copy_(value if count == 0 else avg_fn(mean, value, count.to(mean.device)))
    update_parameters(average, model, count, avg_fn)  # last, because it increases the count


@torch.no_grad()
def _transfer(transfer_weights: Callable, source: nn.Module, target: nn.Module) -> None:
    transfer_weights(source, target)
    for value, destination in zip(_statistics(source), _statistics(target), strict=True):
        destination.copy_(value)


def _statistics(model: nn.Module) -> Iterator[Tensor]:
    return (buffer for buffer in model.buffers() if buffer.is_floating_point())
