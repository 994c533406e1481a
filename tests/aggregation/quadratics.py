"""Clients whose losses are parabolas, so that everything can be computed by hand."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

#: curvature a_k and centre b_k of each client; the first two have the optimum (1 - 9)/10 = -0.8
CLIENTS = ((1.0, 1.0), (9.0, -1.0), (4.0, 0.5), (2.0, -2.0), (6.0, 2.0))


class Quadratic(LightningModule):
    """f_k(w) = a_k/2 (w - b_k)²; a sample is (a, b)."""

    def __init__(self, momentum: float = 0.0, lr: float = 0.05) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.momentum, self.lr = momentum, lr

    def training_step(self, batch, batch_idx):
        a, b = batch
        return (0.5 * a * (self.w - b) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def parabolas(count: int, samples: tuple[int, ...] | None = None) -> list[TensorDataset]:
    """Return one data set of identical samples per client."""
    sizes = samples or (1,) * count
    return [
        TensorDataset(torch.full((size,), a, dtype=torch.float64), torch.full((size,), b, dtype=torch.float64))
        for (a, b), size in zip(CLIENTS[:count], sizes, strict=True)
    ]
