"""Clients: how one trains, and what runs beside its training."""

from fl_lightning.client.callback import ClientCallback
from fl_lightning.client.training import LocalTraining

__all__ = ["ClientCallback", "LocalTraining"]
