"""The convolutional networks of the papers: convolutions followed by fully connected layers.

ReLU follows every layer except the last, which returns logits; the loss applies the softmax.
"""

from torch import nn


class MnistCNN(nn.Sequential):
    """FedNNNN's CNN for 28 × 28 images (its Table 3), 431,080 parameters.

    Args:
        num_classes: width of the last layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * 4 * 4, 500),
            nn.ReLU(),
            nn.Linear(500, num_classes),
        )
        self.num_classes = num_classes


class CifarCNN(nn.Sequential):
    """FedNNNN's CNN for 32 × 32 colour images (its Table 4): six convolutions with BatchNorm, 1,146,088 parameters.

    Args:
        num_classes: width of the last layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            *_normalised(3, 32, 3),
            *_normalised(32, 32, 3),
            nn.MaxPool2d(2),
            *_normalised(32, 64, 3),
            *_normalised(64, 64, 3),
            nn.MaxPool2d(2),
            *_normalised(64, 128, 3),
            *_normalised(128, 128, 3),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128 * 4 * 4, 382),
            nn.ReLU(),
            nn.Linear(382, 192),
            nn.ReLU(),
            nn.Linear(192, num_classes),
        )
        self.num_classes = num_classes


class FedAdpCNN(nn.Sequential):
    """FedAdp's CNN for 28 × 28 images (its footnote 4), 1,663,370 parameters.

    The paper's total requires padded convolutions, with which 64 · 7 · 7 values reach the first fully connected layer.
    The 1024 values that the paper states would follow from unpadded ones.

    Args:
        num_classes: width of the last layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )
        self.num_classes = num_classes


class FedNSCNN(nn.Sequential):
    """FedNS's 5-layer CNN for 28 × 28 images (its section 4), 1,366,666 parameters.

    Args:
        num_classes: width of the last layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 1024),
            nn.ReLU(),
            nn.Linear(1024, 256),
            nn.ReLU(),
            nn.Linear(256, num_classes),
        )
        self.num_classes = num_classes


class AlexNet32(nn.Sequential):
    """AlexNet for 32 × 32 colour images, as FedNS trains it on CIFAR-10, 23,272,266 parameters.

    torchvision's AlexNet is made for 224 × 224 images and would shrink 32 × 32 images to nothing.

    Args:
        num_classes: width of the last layer.
        dropout: probability of dropout before the first two fully connected layers.
    """

    def __init__(self, num_classes: int = 10, dropout: float = 0.5) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(256 * 2 * 2, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, num_classes),
        )
        self.num_classes = num_classes
        self.dropout = dropout


class LeNet(nn.Sequential):
    """FedDNA's LeNet with BatchNorm: convolutions of 6 and 16 channels, then 120-84-10, 61,750 parameters.

    Smaller images, such as MNIST's 28 × 28 pixels, are padded to LeNet's 32 × 32.

    Args:
        image_size: height and width of an image.
        channels: number of channels of an image, 1 for grey and 3 for colour.
        num_classes: width of the last layer.
    """

    def __init__(self, image_size: int = 28, channels: int = 1, num_classes: int = 10) -> None:
        padding = max(0, 32 - image_size + 1) // 2
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        super().__init__(
            *_normalised(channels, 6, 5, padding),
            nn.MaxPool2d(2),
            *_normalised(6, 16, 5, 0),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )
        self.image_size = image_size
        self.channels = channels
        self.num_classes = num_classes


class FourLayerCNN(nn.Sequential):
    """FedDNA's 4-layer CNN with BatchNorm: padded 3 × 3 convolutions of 32 and 64 channels, then 512-10.

    It has 2,122,378 parameters on CIFAR-10.

    Args:
        image_size: height and width of an image.
        channels: number of channels of an image, 1 for grey and 3 for colour.
        num_classes: width of the last layer.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, num_classes: int = 10) -> None:
        side = image_size // 4
        super().__init__(
            *_normalised(channels, 32, 3),
            nn.MaxPool2d(2),
            *_normalised(32, 64, 3),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )
        self.image_size = image_size
        self.channels = channels
        self.num_classes = num_classes


def _normalised(inputs: int, outputs: int, kernel: int, padding: int = 1) -> list[nn.Module]:
    """Return a convolution, BatchNorm and ReLU.

    The convolution has a bias, as in FedNNNN, because it needs one if ``normalisation: none`` removes the BatchNorm.
    """
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU()]
