"""A data set that knows nothing about this package, like a user's."""

import torch
from torch.utils.data import Dataset


class Pairs(Dataset):
    """A map-style data set without tensors or targets. The label of sample i is i mod 3."""

    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return torch.full((3,), float(index)), index % 3
