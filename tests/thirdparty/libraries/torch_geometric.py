"""A graph network whose batches are the library's own objects, from the library's own loader."""

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool


class GraphClassifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = GCN(3, 8, num_layers=2, dropout=0.1, norm="batch_norm")
        self.head = nn.Linear(8, 2)

    def _loss(self, batch: Batch) -> Tensor:
        nodes = self.network(batch.x, batch.edge_index)
        return functional.cross_entropy(self.head(global_mean_pool(nodes, batch.batch)), batch.y)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss, batch_size=batch.num_graphs)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), batch_size=batch.num_graphs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def module() -> L.LightningModule:
    return GraphClassifier()


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    graphs = [
        Data(
            x=torch.randn(5 + number % 3, 3, generator=generator) + number % 2,
            edge_index=torch.randint(0, 5, (2, 12), generator=generator),
            y=torch.tensor([number % 2]),
        )
        for number in range(32)
    ]
    return DataLoader(graphs, batch_size=8, shuffle=True)
