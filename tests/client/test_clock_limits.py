"""What users are told about a client's time: warnings, and settings that are refused."""

import warnings

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from fl_lightning import LocalTraining
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID
from tests.client.test_clock import EPOCHS, SCHEDULES, SameBatches, federated_run
from tests.toys import Net


def warnings_of(module, **options) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federated_run(module, partition=IID(3), **options)
    return [str(warning.message) for warning in caught if "begin again" in str(warning.message)]


def test_a_module_with_a_scheduler_is_warned_once_that_it_begins_again():
    (warning,) = warnings_of(SCHEDULES["StepLR"](), clock="round")
    assert warning.startswith("Scheduled has a StepLR, but")
    assert warning.endswith("set client.clock to run to let them continue over the run")


class ReadsInHelper(Net):
    @property
    def beta(self):
        return min(1.0, self.current_epoch / 10)

    def validation_step(self, batch, batch_idx):
        self.log("step", float(self.global_step))
        super().validation_step(batch, batch_idx)


def test_a_module_that_reads_the_epoch_in_training_is_warned():
    (warning,) = warnings_of(ReadsInHelper(), clock="round")
    assert warning.startswith("ReadsInHelper reads current_epoch, but")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Net, {"clock": "round"}),
        (SCHEDULES["StepLR"], {"clock": "run"}),
        (SCHEDULES["StepLR"], {"clock": "round", "rounds": 1}),
    ],
)
def test_a_module_for_which_nothing_begins_again_is_not_warned(make, options):
    assert warnings_of(make(), **options) == []


class Manual(Net):
    """Steps its optimisers and, if it has one, its scheduler itself."""

    steps: list

    def __init__(self, scheduled: bool = False, skips: bool = False):
        super().__init__()
        self.automatic_optimization = False
        self.scheduled = scheduled
        self.skips = skips

    def configure_optimizers(self):
        first, second = (SGD(layer.parameters(), lr=0.1) for layer in (self.layers[0], self.layers[-1]))
        return [first, second], [lr_scheduler.StepLR(first, 1)] if self.scheduled else []

    def training_step(self, batch, batch_idx):
        self.steps.append((self.current_epoch, self.global_step))
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.manual_backward(loss)
        for optimizer in self.optimizers()[: 1 if self.skips else 2]:
            optimizer.step()
            optimizer.zero_grad()


def test_with_manual_optimisation_every_optimiser_steps_once_per_batch():
    Manual.steps = []
    federated_run(Manual(), rounds=2)
    batches = len(SameBatches())
    assert Manual.steps == [(step // batches, 2 * step) for step in range(2 * EPOCHS * batches)]


def test_a_client_that_takes_other_steps_than_are_counted_is_warned():
    Manual.steps = []
    with pytest.warns(UserWarning, match="took 24 optimiser steps in a round, but clock=run counts 48"):
        federated_run(Manual(skips=True), rounds=1)


def test_a_scheduler_that_the_module_steps_itself_is_refused():
    with pytest.raises(MisconfigurationError, match="clock=run, but Manual steps its StepLR itself"):
        federated_run(Manual(scheduled=True), rounds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clock": "epoch"}, "clock='epoch': set client.clock to round or run"),
        ({"clock": "run", "max_steps": 5}, "max_steps=5 with clock=run"),
        ({"clock": "run", "fast_dev_run": True}, "fast_dev_run=True with clock=run"),
    ],
)
def test_a_clock_that_cannot_work_is_refused_at_once(options, message):
    with pytest.raises(MisconfigurationError, match=message):
        LocalTraining(**options)
