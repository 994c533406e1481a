"""The handwritten digits that come with scikit-learn: real data without a download."""

import torch
from torch.utils.data import TensorDataset

from fl_lightning.data.sources.base import Parts, TensorSource, hold_out


class Digits(TensorSource):
    """1,797 handwritten digits of 8 × 8 pixels in ten classes. A stratified fifth of them is the test set.

    Alpaydin, Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.

    Args:
        batch_size: samples per training batch.
        train_fraction: fraction of the 1,437 training samples to use.
        validation_fraction: fraction of those samples to hold out for validation, before the rest is divided among the
            clients; 0 validates on the test set.
        evaluation_batch_size: samples per batch of validation, test and prediction.
    """

    def __init__(
        self,
        batch_size: int = 16,
        train_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        evaluation_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, train_fraction, validation_fraction, evaluation_batch_size)

    def load(self) -> Parts:
        """Split off the test set, which is always the same, and normalise by the statistics of the training digits."""
        from sklearn.datasets import load_digits  # imported late, because commands without data do not need it
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(images.reshape(-1, 1, 8, 8), labels, test_size=0.2, random_state=0, stratify=labels)
        train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
        mean, std = train_x.mean(), train_x.std()
        train = TensorDataset(((train_x - mean) / std).float(), train_y)
        return hold_out(self, train, TensorDataset(((test_x - mean) / std).float(), test_y))
