"""What all contestants share: the networks, the data, the clients, the start and the plan of every round.

Peers run in environments without fl_lightning, so this file needs torch only.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

EVALUATION_BATCH = 500


@dataclass
class Contest:
    """One task, as the driver writes it for the contestants.

    Args:
        net: ``mlp`` or ``cnn``.
        learning_rate: learning rate of the clients' SGD.
        batch_size: samples per batch of a client.
        threads: threads per contestant, all of its processes together.
        images: training images.
        labels: their classes.
        test_images: images on which the global model is evaluated after every round.
        test_labels: their classes.
        clients: indices of the samples of each client, one row per client.
        cohorts: clients of each round, one row per round.
        orders: indices of the samples of each client of a round, in the order in which it trains on them.
        start: the parameters of the network before the first round.
    """

    net: str
    learning_rate: float
    batch_size: int
    threads: int
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    clients: Tensor
    cohorts: Tensor
    orders: Tensor
    start: list[Tensor]

    @property
    def rounds(self) -> int:
        """Number of rounds, the warm-up included."""
        return len(self.cohorts)

    def save(self, path: Path) -> None:
        """Write the contest to a file."""
        torch.save(asdict(self), path)

    @classmethod
    def load(cls, path: Path) -> "Contest":
        """Read a contest. The tensors stay in the page cache, which all contestants share."""
        return cls(**torch.load(path, mmap=True, weights_only=True))

    def make_net(self) -> nn.Module:
        """Return the network with the parameters of the start."""
        net = make_net(self.net)
        load(net, self.start)
        return net


def make_net(name: str) -> nn.Module:
    """Return T1's MLP 784-200-10 or T2's CNN, which is :class:`fl_lightning.models.MnistCNN` in plain torch."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * 4 * 4, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


@torch.no_grad()
def load(net: nn.Module, parameters: list[Tensor]) -> None:
    """Copy the parameters into a network of the same shape."""
    for own, value in zip(net.parameters(), parameters, strict=True):
        own.copy_(value)


@torch.inference_mode()
def accuracy(net: nn.Module, contest: Contest) -> float:
    """Return the accuracy on the test images."""
    net.eval()
    hits = torch.zeros((), dtype=torch.int64)
    for images, labels in zip(
        contest.test_images.split(EVALUATION_BATCH), contest.test_labels.split(EVALUATION_BATCH), strict=True
    ):
        hits += (net(images).argmax(dim=1) == labels).sum()
    net.train()
    return hits.item() / len(contest.test_labels)
