from torch import Tensor
from torch.utils.data import DataLoader

from tests.toys import Blobs, Net


class Unaffordable(Net):
    """A model that must not be created, for commands that need no model."""

    def __init__(self) -> None:
        raise AssertionError("the model was made")


class Unlabelled(Blobs):
    """Data with inputs to predict, in batches of 50."""

    def predict_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset.tensors[0], batch_size=50)


class TwoLoaders(Unlabelled):
    def predict_dataloader(self) -> list[DataLoader]:
        return [super().predict_dataloader(), super().predict_dataloader()]


class Labelling(Net):
    """A module with a ``predict_step`` of its own."""

    def predict_step(self, batch: Tensor, batch_idx: int) -> dict[str, Tensor]:
        return {"label": self(batch).argmax(1)}
