"""Callbacks that a module configures itself run on the server or on the clients, depending on their hooks."""

from typing import ClassVar

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint

from fl_lightning.callbacks import ClientCallback
from fl_lightning.callbacks.run.preparation import belongs_to_clients
from tests.toys import Blobs, Net, federate


def configured(*callbacks: Callback) -> Net:
    """Return a module that brings its own callbacks."""

    class Configured(Net):
        def configure_callbacks(self):
            return list(callbacks)

    return Configured()


class Batches(Callback):
    """Looks into the batches, as a user's callback does."""

    shapes: ClassVar[list] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        inputs, labels = batch
        self.shapes.append((tuple(inputs.shape), tuple(labels.shape)))
        assert torch.isfinite(outputs["loss"])


def test_a_callback_with_hooks_for_batches_sees_the_clients_batches():
    Batches.shapes.clear()
    _, trainer = federate(configured(Batches()), source=Blobs(samples=64, batch_size=8), rounds=2)
    assert Batches.shapes == [((8, 6), (8,))] * 16  # 8 batches per round
    assert not any(isinstance(callback, Batches) for callback in trainer.callbacks)


def test_a_callback_that_watches_validation_stops_the_server():
    _, trainer = federate(configured(EarlyStopping("val_loss", mode="max", patience=1)), rounds=30)
    assert trainer.current_epoch < 30


def test_a_single_callback_needs_no_list():
    class One(Net):
        def configure_callbacks(self):
            return EarlyStopping("val_loss", mode="max", patience=1)

    _, trainer = federate(One(), rounds=30)
    assert trainer.current_epoch < 30


class Steps(Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        pass


class OwnCheckpoint(ModelCheckpoint):
    def on_train_batch_end(self, *arguments):
        pass


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (Batches(), True),
        (Steps(), True),
        (LambdaCallback(on_after_backward=lambda *_: None), True),
        (ClientCallback(), True),
        (LambdaCallback(on_train_epoch_end=lambda *_: None), False),
        (EarlyStopping("val_loss"), False),
        (ModelCheckpoint(), False),
        (OwnCheckpoint(), False),
    ],
)
def test_hooks_for_batches_that_lightning_does_not_define_decide(callback, expected):
    assert belongs_to_clients(callback) is expected


def test_a_callback_whose_validation_hooks_would_never_run_causes_a_warning():
    class Both(Batches):
        def on_validation_end(self, trainer, pl_module):
            pass

    with pytest.warns(UserWarning, match="Both has hooks for training batches, .* move on_validation_end"):
        federate(configured(Both()), rounds=1)


def test_a_callback_of_the_servers_trainer_gets_the_cohort_as_its_batch():
    class Cohorts(Callback):
        seen: ClassVar[list] = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.seen.append(batch)

    federate(callbacks=[Cohorts()], rounds=2)
    assert Cohorts.seen == [[0, 1, 2, 3]] * 2
