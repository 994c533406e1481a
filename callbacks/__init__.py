"""Callbacks: the server, what watches its rounds, and what runs on clients."""

from fl_lightning.callbacks.angles import AngleDiagnostics
from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.divergence import DivergenceDiagnostics
from fl_lightning.callbacks.evaluation import ClientEvaluation
from fl_lightning.callbacks.hyperparameters import HyperParameters
from fl_lightning.callbacks.layout import TensorBoardLayout
from fl_lightning.callbacks.norms import NormDiagnostics
from fl_lightning.callbacks.participation import Participation
from fl_lightning.callbacks.partition import PartitionPicture
from fl_lightning.callbacks.progress import RoundProgressBar
from fl_lightning.callbacks.proximal import ProximalTerm
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.callbacks.schedules import CosineAnnealing, LearningRateDecay
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.local import ClientCallback

__all__ = [
    "AngleDiagnostics",
    "ClientCallback",
    "ClientEvaluation",
    "CosineAnnealing",
    "DivergenceDiagnostics",
    "FederatedServer",
    "HyperParameters",
    "LastRound",
    "LearningRateDecay",
    "NormDiagnostics",
    "Participation",
    "PartitionPicture",
    "ProximalTerm",
    "RoundCallback",
    "RoundProgressBar",
    "RunSummary",
    "TensorBoardLayout",
]
