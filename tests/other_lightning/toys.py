"""A user's module and data, made with ``lightning``."""

import sys

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss_of_client", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        logits = self.layers(batch[0])
        self.log("val_loss", functional.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)


class Blobs(L.LightningDataModule):
    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(7)
        labels = torch.arange(80) % 4
        centres = torch.randn(4, 6, generator=generator)
        self.dataset = TensorDataset(centres[labels] + torch.randn(80, 6, generator=generator), labels)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=8, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=40)


class TellsImports(L.Callback):
    """Prints which copies of Lightning are imported when training ends."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        copies = ("lightning", "lightning_fabric", "pytorch_lightning")
        print("imported:", *(name for name in copies if name in sys.modules))
