"""Models: a generic classifier and the networks inside it."""

from fl_lightning.models.classifier import Classifier
from fl_lightning.models.nets import DigitsCNN, FullyConnected, MnistCNN
from fl_lightning.models.normalisation import with_normalisation

__all__ = ["Classifier", "DigitsCNN", "FullyConnected", "MnistCNN", "with_normalisation"]
