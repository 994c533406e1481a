"""The settings of a run that must not change when it is resumed."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from fl_lightning.aggregation import Aggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import FederatedDataModule


def run_identity(aggregator: Aggregator, optimizer: Optimizer | None, data: FederatedDataModule) -> dict[str, Any]:
    """Return the settings, as plain types for a checkpoint. ``optimizer`` is the server's, if it has one."""
    return {
        "aggregator": type(aggregator).__name__,
        "server_optimizer": type(optimizer).__name__ if optimizer is not None else "none",
        "num_clients": data.num_clients,
        "seed": data.seed,
    }


def refuse_other_run(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Reject a checkpoint of a run with other settings."""
    for name, was in saved.items():
        if was != current.get(name):
            raise MisconfigurationError(
                f"the checkpoint is from a run with {name}={was}, but this one has {name}={current.get(name)}:"
                " resume with the config.yaml of that run"
            )
