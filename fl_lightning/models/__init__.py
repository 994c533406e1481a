"""Models: a classifier for any network, and the networks of the papers."""

from fl_lightning.models.bilstm import BiLSTM
from fl_lightning.models.classifier import Classifier
from fl_lightning.models.cnns import AlexNet32, CifarCNN, FedAdpCNN, FedNSCNN, FourLayerCNN, LeNet, MnistCNN
from fl_lightning.models.nets import MLR, DigitsCNN, FullyConnected
from fl_lightning.models.normalisation import with_normalisation
from fl_lightning.models.torchvision_net import TorchvisionNet

__all__ = [
    "MLR",
    "AlexNet32",
    "BiLSTM",
    "CifarCNN",
    "Classifier",
    "DigitsCNN",
    "FedAdpCNN",
    "FedNSCNN",
    "FourLayerCNN",
    "FullyConnected",
    "LeNet",
    "MnistCNN",
    "TorchvisionNet",
    "with_normalisation",
]
