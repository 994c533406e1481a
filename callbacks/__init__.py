"""Callbacks: the server, callbacks that observe its rounds, and callbacks that run on clients."""

from fl_lightning.aggregation.fedprox import ProximalTerm
from fl_lightning.callbacks.clients.ditto import Ditto
from fl_lightning.callbacks.clients.evaluation import ClientEvaluation
from fl_lightning.callbacks.clients.schedules import CosineAnnealing, LearningRateDecay
from fl_lightning.callbacks.diagnostics.angles import AngleDiagnostics
from fl_lightning.callbacks.diagnostics.base import Diagnostics
from fl_lightning.callbacks.diagnostics.divergence import DivergenceDiagnostics
from fl_lightning.callbacks.diagnostics.norms import NormDiagnostics
from fl_lightning.callbacks.diagnostics.participation import Participation
from fl_lightning.callbacks.diagnostics.training_loss import GlobalTrainingLoss
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.hparams import HyperParameters
from fl_lightning.callbacks.run.layout import TensorBoardLayout
from fl_lightning.callbacks.run.partition_picture import PartitionPicture
from fl_lightning.callbacks.run.progress import RoundProgressBar
from fl_lightning.callbacks.run.summary import RunSummary
from fl_lightning.callbacks.run.target import StopAtTarget
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.client import ClientCallback

__all__ = [
    "AngleDiagnostics",
    "ClientCallback",
    "ClientEvaluation",
    "CosineAnnealing",
    "Diagnostics",
    "Ditto",
    "DivergenceDiagnostics",
    "FederatedServer",
    "GlobalTrainingLoss",
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
    "StopAtTarget",
    "TensorBoardLayout",
    "log_round",
]
