"""fl_lightning. Options: ``processes=2`` for DDP, ``float32_matmul_precision=medium`` as on the command line, and
arguments of LocalTraining such as ``execution=vectorized``."""

import inspect
import logging
import os
import warnings
from functools import partial
from typing import Any

import torch
from contest import EVALUATION_BATCH, Contest, load
from pytorch_lightning import Callback, LightningDataModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from turns import Turns

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.memory import reuse_freed_memory
from fl_lightning.data import ByList, RandomClients
from fl_lightning.models import Classifier, FullyConnected, MnistCNN

#: seed of the plan: the driver draws cohorts and batches as FederatedDataModule does
SEED = 0


class Source(LightningDataModule):
    """The contest's data as any user would write it: loaders over tensors."""

    def __init__(self, contest: Contest) -> None:
        super().__init__()
        self.train = TensorDataset(contest.images, contest.labels)
        self.test = TensorDataset(contest.test_images, contest.test_labels)
        self.batch_size = contest.batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.test, batch_size=EVALUATION_BATCH)


class TakeTurns(Callback):
    """Lets the first process, which talks to the driver, wait for its turn before every round.

    The others then wait in the broadcast with which Lightning begins every batch.
    """

    def __init__(self, turns: Turns | None) -> None:
        self.turns = turns

    def on_train_epoch_start(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        if self.turns is not None:
            self.turns.wait(accuracy_of(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        if self.turns is not None:
            self.turns.finish(accuracy_of(trainer), pl_module.module.net)
        trainer.strategy.barrier()  # the driver reads the memory of all processes


def accuracy_of(trainer: Trainer) -> float | None:
    value = trainer.callback_metrics.get("val/accuracy")
    return None if value is None else float(value)


def main() -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    reuse_freed_memory()  # as fl-lightning fit does
    turns = Turns("fl_lightning", "pytorch-lightning")
    options: dict[str, Any] = dict(option.split("=") for option in turns.options)
    processes = int(options.pop("processes", 1))
    torch.set_float32_matmul_precision(options.pop("float32_matmul_precision", "highest"))
    precision = options.get("precision", "32-true")  # a flag of both Trainers, the server's and a client's
    for option in options:
        if option != "precision" and option not in inspect.signature(LocalTraining).parameters:
            turns.skip(f"LocalTraining has no argument {option} yet")
    contest = turns.contest(processes)

    net = (FullyConnected if contest.net == "mlp" else MnistCNN)()
    load(net, contest.start)
    module = FederatedModule(Classifier(net, optimizer=partial(torch.optim.SGD, lr=contest.learning_rate)))
    data = FederatedDataModule(
        Source(contest),
        partition=ByList(contest.clients.tolist()),
        selection=RandomClients(count=contest.cohorts.shape[1]),
        seed=SEED,
    )
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    server = FederatedServer(client=LocalTraining(batch_size=contest.batch_size, **options))
    trainer = Trainer(
        max_epochs=contest.rounds,
        callbacks=[server, TakeTurns(turns if is_first else None)],
        accelerator="cpu",
        devices=processes,
        precision=precision,
        strategy="ddp" if processes > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)


if __name__ == "__main__":
    main()
