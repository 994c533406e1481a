"""Federated learning on PyTorch Lightning: any LightningModule becomes federated."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.callbacks.server import FederatedServer
    from fl_lightning.client import LocalTraining
    from fl_lightning.core.update import ClientUpdate, LostClient
    from fl_lightning.data import FederatedDataModule
    from fl_lightning.module import FederatedModule

__version__ = "0.2.0"

__all__ = [
    "ClientUpdate",
    "FederatedDataModule",
    "FederatedModule",
    "FederatedServer",
    "LocalTraining",
    "LostClient",
    "__version__",
]

_HOMES = {
    "ClientUpdate": "fl_lightning.core.update",
    "FederatedDataModule": "fl_lightning.data",
    "FederatedModule": "fl_lightning.module",
    "FederatedServer": "fl_lightning.callbacks",
    "LocalTraining": "fl_lightning.client",
    "LostClient": "fl_lightning.core.update",
}


def __getattr__(name: str) -> Any:
    """Import a public class when it is first used, because Lightning takes seconds to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public classes even before they are imported."""
    return sorted({*globals(), *_HOMES})
