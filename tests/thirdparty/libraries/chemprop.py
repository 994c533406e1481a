"""A message-passing network on molecules, with the library's own LightningModule, loader and schedule per step."""

import lightning as L  # noqa: N812
import numpy as np
from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader
from chemprop.models import MPNN
from chemprop.nn import BondMessagePassing, MeanAggregation, RegressionFFN
from torch.utils.data import DataLoader


def module() -> L.LightningModule:
    return MPNN(
        BondMessagePassing(d_h=16, depth=2, dropout=0.1),
        MeanAggregation(),
        RegressionFFN(input_dim=16, hidden_dim=16),
        batch_norm=True,
        warmup_epochs=0,
    )


def loader() -> DataLoader:
    molecules = [
        f"{'C' * (1 + number % 6)}{end}" for number, end in enumerate(["O", "N", "Cl", "(=O)O", "c1ccccc1"] * 8)
    ]
    points = [MoleculeDatapoint.from_smi(text, y=np.array([len(text) / 5])) for text in molecules]
    return build_dataloader(MoleculeDataset(points), batch_size=8, num_workers=0)
