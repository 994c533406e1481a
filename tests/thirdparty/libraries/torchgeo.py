"""A classification task on aerial images, with the library's own LightningModule and learning-rate schedule."""

import lightning as L  # noqa: N812
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchgeo.trainers import ClassificationTask


class _Images(Dataset):
    """Samples are dictionaries, as in all of the library's data sets."""

    def __init__(self) -> None:
        self._images = torch.randn(24, 4, 32, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self._images[index], "label": torch.tensor(index % 3)}


def module() -> L.LightningModule:
    return ClassificationTask("resnet18", weights=None, in_channels=4, num_classes=3, lr=0.01)


def loader() -> DataLoader:
    return DataLoader(_Images(), batch_size=8, shuffle=True)
