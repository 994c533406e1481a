"""BERT with random weights, in the LightningModule that everyone writes around it: warm-up and decay per step."""

from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    default_data_collator,
    get_linear_schedule_with_warmup,
)


class _Texts(Dataset):
    """Token numbers; classes differ in the token that they begin with."""

    def __init__(self) -> None:
        self._tokens = torch.randint(5, 50, (32, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = self._tokens[index].clone()
        tokens[0] = index % 2
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": index % 2}


def small_bert() -> BertForSequenceClassification:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=12, num_labels=2, **sizes))


class TextClassifier(L.LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-3)
        schedule = get_linear_schedule_with_warmup(optimizer, 2, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def module() -> L.LightningModule:
    return TextClassifier(small_bert())


def loader() -> DataLoader:
    return DataLoader(_Texts(), batch_size=8, shuffle=True, collate_fn=default_data_collator)
