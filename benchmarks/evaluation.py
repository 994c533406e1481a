"""Time validation: in a federation and in plain Lightning, and with and without sharing between two processes.

    python benchmarks/evaluation.py [--repeats 10]

The Classifier with an MLP 784-200-10 is validated on 10,000 MNIST-sized images, in batches of 512. Both ways take turns
in one process, or in one run of two processes, each with one thread. The CPU time of the process is measured too,
because wall-clock time says little on a busy machine.
"""

import argparse
import logging
import statistics
import time
import warnings

import torch
from pytorch_lightning import Callback, LightningDataModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedModule
from fl_lightning.callbacks import FederatedServer
from fl_lightning.data import IID
from fl_lightning.models import Classifier, FullyConnected

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Images(LightningDataModule):
    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(10_000, 1, 28, 28, generator=generator)
        self.data = TensorDataset(images, torch.randint(10, (10_000,), generator=generator))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(*self.data[:50]), batch_size=50)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=512)


class Clock(Callback):
    """Times every validation; with ``alternate``, processes share the batches only in every other one."""

    def __init__(self, alternate: bool = False) -> None:
        self.alternate = alternate
        self.times: list[tuple[float, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        loop = trainer.fit_loop.epoch_loop.val_loop
        if self.alternate and trainer.current_epoch > 0:
            loop._obstacle = None if loop._obstacle else "this round is for comparison"

    def on_validation_start(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        if trainer.world_size > 1:
            trainer.strategy.barrier()
        self.begin = time.perf_counter(), time.process_time()

    def on_validation_end(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        self.times.append((time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]))

    def on_fit_end(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        if self.alternate and trainer.is_global_zero:
            report("all batches in both processes", "shared", self.times[2::2], self.times[3::2])


def report(before: str, after: str, first: list[tuple[float, float]], second: list[tuple[float, float]]) -> None:
    for index, kind in enumerate(("clock", "CPU time")):
        slow, fast = ([times[index] for times in runs] for runs in (first, second))
        ratios = [a / b for a, b in zip(slow, fast, strict=False)]
        milliseconds = [1000 * statistics.median(times) for times in (slow, fast)]
        print(
            f"{kind}: {before} {milliseconds[0]:.0f} ms, {after} {milliseconds[1]:.0f} ms,"
            f" median ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def module() -> FederatedModule:
    return FederatedModule(Classifier(FullyConnected()))


def compare_with_lightning(repeats: int) -> None:
    model, clocks = module(), (Clock(), Clock())
    ways = (
        (Images(), [clocks[0]]),
        (FederatedDataModule(Images(), partition=IID(1)), [FederatedServer(), clocks[1]]),
    )
    for _ in range(repeats + 1):
        for data, callbacks in ways:
            Trainer(callbacks=callbacks, devices=1, **QUIET).validate(model, data, verbose=False)
    report("plain Lightning", "federated", *(clock.times[1:] for clock in clocks))


def compare_sharing(repeats: int) -> None:
    trainer = Trainer(
        callbacks=[FederatedServer(), Clock(alternate=True)],
        max_epochs=2 * repeats + 2,
        num_sanity_val_steps=0,
        strategy="ddp_fork",
        devices=2,
        **QUIET,
    )
    trainer.fit(module(), FederatedDataModule(Images(), partition=IID(2)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    compare_with_lightning(repeats)
    compare_sharing(repeats)
