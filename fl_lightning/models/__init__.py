"""Models: a generic classifier and the networks inside it."""

from fl_lightning.models.classifier import Classifier
from fl_lightning.models.nets import MLP, DigitsCNN, MnistCNN
from fl_lightning.models.normalisation import with_normalisation

__all__ = ["MLP", "Classifier", "DigitsCNN", "MnistCNN", "with_normalisation"]
