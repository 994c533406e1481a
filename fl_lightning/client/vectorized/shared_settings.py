"""What all clients that train at once must have in common: frozen parameters, optimiser settings, learning rates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from fl_lightning._lightning.names import LightningModule
from fl_lightning.client.callback import Progress, overrides
from fl_lightning.client.participants import KeyedCallbacks
from fl_lightning.client.vectorized.requirements import CannotVectorizeError
from fl_lightning.core.randomness import Generators


def frozen_parameters(module: LightningModule, clients: Sequence[KeyedCallbacks]) -> set[str]:
    """Return the parameters that the clients' callbacks freeze, which must be the same for all clients."""
    frozen = [{name for _, callback in callbacks for name in callback.frozen(module)} for callbacks in clients]
    if any(names != frozen[0] for names in frozen):
        raise _differ("freezes different parameters for different clients")
    return frozen[0]


def start_clients(
    module: LightningModule,
    optimizer: Optimizer,
    clients: Sequence[KeyedCallbacks],
    generators: Sequence[Generators],
) -> None:
    """Call ``on_client_start`` for every client. All get the same optimiser, and must leave it with equal settings."""
    if not any(clients):
        return
    configured, left = _settings(optimizer), None
    for callbacks, own_generators in zip(clients, generators, strict=True):
        for group, settings in zip(optimizer.param_groups, configured, strict=True):
            group.update(settings)
        with own_generators:
            for _, callback in callbacks:
                callback.on_client_start(module, [optimizer])
        if left is not None and _settings(optimizer) != left:
            raise _differ("gives clients different settings of the optimiser")
        left = _settings(optimizer)


@contextmanager
def changed_rates(optimizer: Optimizer, clients: Sequence[KeyedCallbacks], progress: Progress) -> Iterator[None]:
    """Let the clients' callbacks change the learning rates for one step."""
    if not any(overrides(callback, "learning_rate") for _, callback in clients[0]):
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        changed = {_changed_rate(rate, callbacks, progress) for callbacks in clients}
        if len(changed) > 1:
            raise _differ("gives clients different learning rates")
        group["lr"] = changed.pop()
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _changed_rate(rate: float, callbacks: KeyedCallbacks, progress: Progress) -> float:
    for _, callback in callbacks:
        rate = callback.learning_rate(rate, progress)
    return rate


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _differ(what: str) -> CannotVectorizeError:
    return CannotVectorizeError(f"a callback {what}")
