"""Small networks that do not belong to one paper. They map a batch of images to logits."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


class FullyConnected(nn.Sequential):
    """Fully connected layers with ReLU between them.

    Args:
        inputs: number of values per image.
        hidden: widths of the hidden layers.
        num_classes: width of the last layer.
    """

    def __init__(self, inputs: int = 784, hidden: Sequence[int] = (200,), num_classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        widths = [inputs, *hidden]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], num_classes))
        self.inputs = inputs
        self.hidden = hidden
        self.num_classes = num_classes


class MLR(FullyConnected):
    """Multinomial logistic regression: one fully connected layer, whose loss is convex.

    Args:
        inputs: number of values per image.
        num_classes: width of the layer.
    """

    def __init__(self, inputs: int = 784, num_classes: int = 10) -> None:
        super().__init__(inputs, hidden=(), num_classes=num_classes)


class DigitsCNN(nn.Sequential):
    """A small CNN for the bundled 8 × 8 digits: two 3 × 3 convolutions, pooling, one hidden layer.

    Args:
        channels: widths of the two convolutions.
        hidden: width of the hidden layer.
        num_classes: width of the last layer.
        batch_norm: whether BatchNorm follows each convolution.
    """

    def __init__(
        self,
        channels: tuple[int, int] = (16, 32),
        hidden: int = 64,
        num_classes: int = 10,
        batch_norm: bool = False,
    ) -> None:
        first, second = channels
        super().__init__(
            nn.Conv2d(1, first, 3, padding=1),
            *([nn.BatchNorm2d(first)] if batch_norm else []),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1),
            *([nn.BatchNorm2d(second)] if batch_norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * 16, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )
        self.channels = channels
        self.hidden = hidden
        self.num_classes = num_classes
        self.batch_norm = batch_norm
