"""The handwritten digits that scikit-learn ships: real data, no download."""

import torch
from pytorch_lightning import LightningDataModule
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningDataModule):
    """1,797 handwritten digits of 8 × 8 pixels in ten classes; a fifth of them, stratified, is the test set.

    Alpaydin, Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.

    Args:
        batch_size: samples a batch.
    """

    def __init__(self, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Loads the digits; the split is always the same."""
        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(images.reshape(-1, 1, 8, 8), labels, test_size=0.2, random_state=0, stratify=labels)
        train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
        mean, std = train_x.mean(), train_x.std()
        self.train = TensorDataset(((train_x - mean) / std).float(), train_y)
        self.test = TensorDataset(((test_x - mean) / std).float(), test_y)

    def train_dataloader(self) -> DataLoader:
        """1,437 digits."""
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """360 digits, to watch the global model from round to round."""
        return DataLoader(self.test, batch_size=512)

    def test_dataloader(self) -> DataLoader:
        """The same 360."""
        return self.val_dataloader()
