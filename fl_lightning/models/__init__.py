"""Models: a generic classifier and the networks inside it."""

from fl_lightning.models.classifier import Classifier
from fl_lightning.models.nets import MLP, DigitsCNN, MnistCNN

__all__ = ["MLP", "Classifier", "DigitsCNN", "MnistCNN"]
