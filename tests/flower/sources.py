"""A client's own data, as a file on its machine."""

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

from tests.toys import blobs


class FileBlobs(LightningDataModule):
    """Trains on the samples in a file, and validates on data that the server has."""

    def __init__(self, file: str = "missing.pt", batch_size: int = 8) -> None:
        super().__init__()
        self.file = file
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.dataset = TensorDataset(*torch.load(self.file, weights_only=True))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(blobs(), batch_size=50)
