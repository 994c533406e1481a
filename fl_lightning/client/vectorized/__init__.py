"""Training all clients of a round at once: their models are stacked, and one step moves all of them."""

from fl_lightning.client.vectorized.requirements import CannotVectorizeError, check_profitable
from fl_lightning.client.vectorized.training import VectorizedTraining

__all__ = ["CannotVectorizeError", "VectorizedTraining", "check_profitable"]
