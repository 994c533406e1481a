"""What ``fl_lightning/_lightning/progress.py`` relies on in Lightning's training loop."""

import warnings

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from fl_lightning._lightning.progress import Past, go_on
from fl_lightning._lightning.trainer import TrainerTemplate
from tests.toys import Blobs, Net


class Counting(Blobs):
    """Counts how often its loader is read from the start."""

    starts = 0

    def train_dataloader(self):
        return self

    def __iter__(self):
        self.starts += 1
        yield from super().train_dataloader()

    def __len__(self):
        return 15


class Scheduled(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [StepLR(optimizer, 1, gamma=0.5)]


def trainer_with_past(epochs: int, end: int):
    trainer = TrainerTemplate(torch.device("cpu"), max_epochs=1, limit_val_batches=0).copy()
    trainer.run_epochs = 9
    trainer.strategy.on_optimizers = lambda: go_on(trainer, Past(epochs, end, validation=lambda epoch: {}))
    return trainer


@pytest.mark.parametrize("module", [Net, Scheduled])
def test_a_trainer_begins_and_ends_where_its_past_says(module):
    trainer = trainer_with_past(epochs=4, end=6)
    trainer.fit(module(), datamodule=Blobs(batch_size=8))
    message = "progress.go_on sets the counters of fit_loop.epoch_progress and of the optimisation loops"
    assert (trainer.current_epoch, trainer.global_step) == (6, 6 * 15), message
    assert trainer.strategy.steps_before == 4 * 15, message
    assert trainer.max_epochs == 9, "progress.ClientTrainer overrides Trainer.max_epochs"


def test_the_first_epoch_after_the_past_reads_its_batches_once():
    data = Counting(batch_size=8)
    trainer_with_past(epochs=4, end=6).fit(Net(), datamodule=data)
    assert data.starts == 2, "progress.go_on sets fit_loop._resuming_from_checkpoint"


def test_torch_does_not_warn_that_schedulers_step_before_optimisers():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.step")
        trainer_with_past(epochs=4, end=6).fit(Scheduled(), datamodule=Blobs(batch_size=8))


def test_the_loop_names_its_schedulers_updates_and_its_accumulation():
    loop = trainer_with_past(1, 2).fit_loop.epoch_loop
    for name in ("update_lr_schedulers", "_should_accumulate", "_batches_that_stepped", "batch_progress"):
        assert hasattr(loop, name), f"progress uses {name} of the training loop"
