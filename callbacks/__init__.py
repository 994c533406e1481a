"""Callbacks: the server, what watches its rounds, and what runs on clients."""

from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.evaluation import ClientEvaluation
from fl_lightning.callbacks.progress import RoundProgressBar
from fl_lightning.callbacks.proximal import ProximalTerm
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.callbacks.schedules import CosineAnnealing, LearningRateDecay
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.local import ClientCallback

__all__ = [
    "ClientCallback",
    "ClientEvaluation",
    "CosineAnnealing",
    "FederatedServer",
    "LastRound",
    "LearningRateDecay",
    "ProximalTerm",
    "RoundCallback",
    "RoundProgressBar",
    "RunSummary",
]
