"""What the evaluation without unused hooks assumes about Lightning's loop: both must log and count the same."""

import pytest
import torch
from pytorch_lightning import Callback
from torch.utils.data import DataLoader

from fl_lightning._lightning.plain_evaluation import PlainEvaluationLoop
from tests.toys import Blobs, Net, blobs, federate, quiet_trainer


class Observer(Callback):
    """Observes batches, so that the loop is Lightning's own."""

    def on_validation_batch_end(self, *_):
        pass

    def on_test_batch_start(self, *_):
        pass


class LogsSteps(Net):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("by_step", torch.tensor(float(batch_idx)), on_step=True, on_epoch=True)

    def test_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)


class WithoutIndex(Net):
    def validation_step(self, batch):
        super().validation_step(batch, 0)

    def test_step(self, batch):
        super().validation_step(batch, 1)


class TwoLoaders(LogsSteps):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)
        self.log("loader", float(dataloader_idx))

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.validation_step(batch, batch_idx, dataloader_idx)


class TwoSets(Blobs):
    def val_dataloader(self):
        return [DataLoader(blobs(size), batch_size=8) for size in (20, 30)]

    test_dataloader = val_dataloader


def evaluate(make_module, data, stage, callbacks):
    torch.manual_seed(0)
    trainer = quiet_trainer(callbacks=callbacks)
    loop = getattr(trainer, f"{stage}_loop")
    loop.__class__ = PlainEvaluationLoop
    results = getattr(trainer, stage)(make_module(), datamodule=data, verbose=False)
    return results, loop.batch_progress.total, loop._seen_batches_per_dataloader, loop._plain


@pytest.mark.parametrize("stage", ["validate", "test"])
@pytest.mark.parametrize(
    ("make_module", "make_data"), [(LogsSteps, Blobs), (WithoutIndex, Blobs), (TwoLoaders, TwoSets)]
)
def test_an_evaluation_without_observers_logs_and_counts_like_lightnings(make_module, make_data, stage):
    *plain, is_plain = evaluate(make_module, make_data(), stage, [])
    *usual, is_usual_plain = evaluate(make_module, make_data(), stage, [Observer()])
    assert (is_plain, is_usual_plain) == (True, False)
    assert plain == usual, "plain_evaluation repeats _EvaluationLoop._evaluation_step, which has changed"


def test_a_federation_evaluates_without_unused_hooks():
    _, trainer = federate(Net())
    assert trainer.fit_loop.epoch_loop.val_loop._plain
