"""LoRA on BERT: the base model is frozen, and only the adapters and the head are trained."""

import lightning as L  # noqa: N812
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader

from tests.thirdparty.libraries import transformers


def module() -> L.LightningModule:
    adapters = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"])
    return transformers.TextClassifier(get_peft_model(transformers.small_bert(), adapters))


def loader() -> DataLoader:
    return transformers.loader()
