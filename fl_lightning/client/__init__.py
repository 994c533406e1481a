"""Clients: local training, and the callbacks that take part in it."""

from fl_lightning.client.callback import ClientCallback, Progress
from fl_lightning.client.cohort import CohortTraining
from fl_lightning.client.training import LocalTraining

__all__ = ["ClientCallback", "CohortTraining", "LocalTraining", "Progress"]
