"""Small models and data that know nothing about this package, like a user's."""

from collections.abc import Iterator

import numpy as np
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ClientUpdate, FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.data import IID


def blobs(samples: int = 120, classes: int = 4, features: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(samples) % classes
    centres = torch.randn(classes, features, generator=generator)
    return TensorDataset(centres[labels] + 0.5 * torch.randn(samples, features, generator=generator), labels)


class Blobs(LightningDataModule):
    def __init__(self, samples: int = 120, batch_size: int = 16) -> None:
        super().__init__()
        self.samples = samples
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.dataset = blobs(self.samples)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=50)

    def test_dataloader(self) -> DataLoader:
        return self.val_dataloader()


class Net(LightningModule):
    """A user's module, with hyper-parameters and optional BatchNorm and dropout."""

    def __init__(
        self,
        hidden: int = 8,
        lr: float = 0.1,
        momentum: float = 0.0,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
        self.layers = nn.Sequential(nn.Linear(6, hidden), *norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss = functional.cross_entropy(self(inputs), labels)
        self.log("train_loss_of_client", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        inputs, labels = batch
        logits = self(inputs)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        inputs, labels = batch
        self.log("test_accuracy", (self(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=self.hparams.momentum)


def quiet_trainer(**flags) -> Trainer:
    defaults = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    return Trainer(**{**defaults, **flags})


def federate(
    module: LightningModule | None = None,
    source=None,
    partition=None,
    selection=None,
    server: FederatedServer | None = None,
    rounds: int = 2,
    callbacks=(),
    ckpt_path=None,
    **flags,
) -> tuple[FederatedModule, Trainer]:
    """Run a federation and return the trained module and its Trainer."""
    federated = FederatedModule(module or Net())
    source = source or Blobs()
    if partition is None and isinstance(source, LightningDataModule):
        partition = IID(num_clients=4)
    data = FederatedDataModule(source, partition=partition, selection=selection)
    server = server or FederatedServer(client=LocalTraining(epochs=1))
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[server, *callbacks], **flags)
    trainer.fit(federated, data, ckpt_path=ckpt_path)
    return federated, trainer


class ConvNet(nn.Module):
    """Has every part of a state: a convolution, BatchNorm, a linear layer, a frozen parameter and a boolean buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.hidden = nn.Linear(12, 5)
        self.head = nn.Linear(5, 4)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("flag", torch.tensor(True))


def random_state(model: nn.Module, generator: np.random.Generator) -> dict[str, Tensor]:
    """Return a random state with the model's shapes, with counters and positive variances."""
    state = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            drawn = generator.normal(size=tuple(value.shape))
            state[name] = torch.tensor(np.abs(drawn) if "var" in name else drawn, dtype=value.dtype)
        elif value.dtype == torch.bool:
            state[name] = torch.tensor(False)
        else:
            state[name] = torch.tensor(generator.integers(1, 100))
    return state


def random_updates(model: nn.Module, count: int, generator: np.random.Generator) -> list[ClientUpdate]:
    return [
        ClientUpdate(
            client=client,
            state=random_state(model, generator),
            num_samples=int(generator.integers(1, 500)),
            class_counts=torch.tensor(generator.integers(0, 50, size=4)),
        )
        for client in range(count)
    ]


def identical(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def batches_of(loader) -> Iterator[list[Tensor]]:
    yield from loader
