"""Small networks that belong to no paper: plain ``nn.Module``s that map a batch of images to logits."""

from collections.abc import Sequence

from torch import nn


class FullyConnected(nn.Sequential):
    """Fully connected layers with ReLU between them.

    Args:
        inputs: values an image.
        hidden: widths of the hidden layers.
        num_classes: width of the last.
    """

    def __init__(self, inputs: int = 784, hidden: Sequence[int] = (200,), num_classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, num_classes))


class MLR(FullyConnected):
    """Multinomial logistic regression: one fully connected layer, whose loss is convex.

    Args:
        inputs: values an image.
        num_classes: width of the layer.
    """

    def __init__(self, inputs: int = 784, num_classes: int = 10) -> None:
        super().__init__(inputs, hidden=(), num_classes=num_classes)


class DigitsCNN(nn.Sequential):
    """A small CNN for the bundled 8 × 8 digits: two 3 × 3 convolutions, pooling, one hidden layer.

    Args:
        channels: of the two convolutions.
        hidden: width of the hidden layer.
        num_classes: width of the last.
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
