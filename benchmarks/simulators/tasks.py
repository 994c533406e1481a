"""The three tasks, and how a contest is drawn: data, clients, start and plan."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from contest import Contest, make_net
from torch import Tensor

#: seed of everything that is drawn
SEED = 0


@dataclass(frozen=True)
class Task:
    """A network and a number of clients per round.

    Args:
        title: description in the table and the picture.
        net: ``mlp`` or ``cnn``.
        cohort: clients per round.
        turn: rounds per turn. If there are several, the first is not counted: all other contestants have run since the
            last one, so the caches hold nothing of this contestant, and in a short round that shows.
    """

    title: str
    net: str
    cohort: int
    turn: int


TASKS = {
    "T1": Task("MLP 784-200-10, 10 clients per round", "mlp", 10, turn=5),
    "T2": Task("FedNNNN's MNIST CNN, 10 clients per round", "cnn", 10, turn=1),
    "T3": Task("MLP 784-200-10, 100 clients per round", "mlp", 100, turn=1),
}


@dataclass(frozen=True)
class Sizes:
    """How large a contest is.

    Args:
        clients: number of clients.
        samples: training samples per client.
        test: samples on which the global model is evaluated after every round.
        batch: samples per batch of a client.
    """

    clients: int = 100
    samples: int = 600
    test: int = 10_000
    batch: int = 50


class Data:
    """Training and test data: MNIST, or data of the same shape.

    Args:
        folder: folder that holds ``MNIST/raw``; by default, the data is synthetic.
        sizes: how many samples to use.
    """

    def __init__(self, folder: Path | None, sizes: Sizes) -> None:
        train = sizes.clients * sizes.samples
        if folder is None:
            self.name = "synthetic, of MNIST's shape"
            images, labels = _synthetic(train + sizes.test)
            self.images, self.test_images = images.split([train, sizes.test])
            self.labels, self.test_labels = labels.split([train, sizes.test])
        else:
            self.name = "MNIST"
            self.images, self.labels = _mnist(folder, True, train)
            self.test_images, self.test_labels = _mnist(folder, False, sizes.test)


def draw(task: Task, data: Data, sizes: Sizes, rounds: int, threads: int) -> Contest:
    """Draw a contest. Cohorts and batches are drawn as fl_lightning draws them, so that it can run unchanged."""
    from fl_lightning.data import RandomClients
    from fl_lightning.data.batches import ClientBatches

    shuffled = np.random.default_rng(SEED).permutation(len(data.labels))
    clients = np.sort(shuffled.reshape(sizes.clients, sizes.samples), axis=1)
    selection = RandomClients(count=min(task.cohort, sizes.clients))
    cohorts = [selection.cohort(sizes.clients, SEED, number) for number in range(rounds)]
    orders = [
        [
            np.concatenate(ClientBatches(clients[client], sizes.batch, key=(SEED, number, client)).arrays())
            for client in cohort
        ]
        for number, cohort in enumerate(cohorts)
    ]
    torch.manual_seed(SEED)
    return Contest(
        net=task.net,
        learning_rate=0.05,
        batch_size=sizes.batch,
        threads=threads,
        images=data.images.clone(),
        labels=data.labels.clone(),
        test_images=data.test_images.clone(),
        test_labels=data.test_labels.clone(),
        clients=torch.from_numpy(clients),
        cohorts=torch.tensor(cohorts),
        orders=torch.from_numpy(np.array(orders)),
        start=[parameter.detach() for parameter in make_net(task.net).parameters()],
    )


def _synthetic(count: int) -> tuple[Tensor, Tensor]:
    """Return images of ten classes: each has five prototypes, and noise makes them hard to tell apart."""
    generator = torch.Generator().manual_seed(SEED)
    prototypes = torch.randn(10, 5, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    variants = torch.randint(5, (count,), generator=generator)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    return images.add_(prototypes[labels, variants], alpha=0.35), labels


def _mnist(folder: Path, train: bool, count: int) -> tuple[Tensor, Tensor]:
    from torchvision.datasets import MNIST

    data = MNIST(str(folder), train=train)
    images = data.data[:count].unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)
    return images, data.targets[:count].clone()
