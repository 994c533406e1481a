"""Callbacks: the server, what watches its rounds, and what runs on clients."""

from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.progress import RoundProgressBar
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.local import ClientCallback

__all__ = ["ClientCallback", "FederatedServer", "LastRound", "RoundCallback", "RoundProgressBar", "RunSummary"]
