"""What the plain steps of clients assume about Lightning's training loop."""

import pytest
import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning import LocalTraining
from fl_lightning._lightning import client_loop
from fl_lightning._lightning.client_loop import PlainEpochLoop
from fl_lightning._lightning.placed_results import PlacedResults
from fl_lightning._lightning.trainer import TrainerTemplate
from fl_lightning._lightning.training_step import _FIT_HOOKS, _STEP_HOOKS, BATCH_HOOKS, step_hooks, training_hooks
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from tests.toys import Blobs, Net, federate, identical


class Observer(Callback):
    """Observes steps, so that they are not plain."""

    def on_train_batch_end(self, *_):
        pass


class Annealed(Net):
    """Has a scheduler that steps after every batch, and logs."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ReturnsDictionary(Net):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx)}


class WithoutIndex(Net):
    def training_step(self, batch):
        return super().training_step(batch, 0)


class SkipsBatches(Net):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


def run(make_module, callbacks):
    torch.manual_seed(0)
    client = LocalTraining(epochs=2, callbacks=callbacks, log_metrics=["train_loss_of_client"])
    module, trainer = federate(make_module(), server=FederatedServer(client=client))
    return dict(module.state_dict()), dict(trainer.callback_metrics)


@pytest.mark.parametrize(
    "make_module",
    [
        Net,
        Annealed,
        ReturnsDictionary,
        WithoutIndex,
        SkipsBatches,
        lambda: Net(batch_norm=True, dropout=0.3, momentum=0.9),
    ],
)
def test_plain_steps_end_like_steps_with_all_hooks(make_module, monkeypatch):
    plain_steps = []
    step = client_loop.step_plainly
    monkeypatch.setattr(
        "fl_lightning._lightning.trainer.step_plainly", lambda *arguments: (plain_steps.append(1), step(*arguments))
    )
    plain, plain_metrics = run(make_module, [])
    assert plain_steps
    plain_steps.clear()
    hooked, hooked_metrics = run(make_module, [Observer()])
    assert not plain_steps
    assert identical(plain, hooked)
    assert plain_metrics == hooked_metrics


class Hooked(Net):
    def on_before_zero_grad(self, optimizer):
        self.seen = True


class Clips(Net):
    """Lightning calls this in every step, whatever ``gradient_clip_val`` is."""

    def clip_gradients(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("module", "flags"),
    [(Hooked(), {}), (Clips(), {}), (Net(), {"gradient_clip_val": 0.1}), (Net(), {"accumulate_grad_batches": 2})],
)
def test_steps_that_something_observes_or_changes_are_not_plain(module, flags, monkeypatch):
    monkeypatch.setattr(
        "fl_lightning._lightning.trainer.step_plainly", lambda *_: pytest.fail("a step without its hooks")
    )
    federate(module, server=FederatedServer(client=LocalTraining(**flags)))


class ReturnsNoLoss(Net):
    def training_step(self, batch, batch_idx):
        return {"error": super().training_step(batch, batch_idx)}


@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_a_step_without_a_loss_is_refused_as_in_lightning(execution):
    with pytest.raises(MisconfigurationException, match="'loss' key needs to be present"):
        Trainer(fast_dev_run=True, logger=False).fit(ReturnsNoLoss(), Blobs())
    with pytest.raises(MisconfigurationError, match="a dictionary of error, which has no loss: return a tensor"):
        federate(ReturnsNoLoss(), server=FederatedServer(client=LocalTraining(execution=execution)))


def test_the_hooks_of_a_batch_are_all_that_lightning_has():
    found = {name for name in vars(Callback) if name.startswith(("on_train_batch_", "on_before_", "on_after_"))}
    assert found == set(BATCH_HOOKS), "training_step.BATCH_HOOKS decides which steps are plain"


def test_every_hook_of_training_is_a_method_of_lightnings_modules():
    everything = type("Everything", (Net,), {name: lambda self: None for name in (*_FIT_HOOKS, *_STEP_HOOKS)})
    assert set(training_hooks(everything())) == {*_FIT_HOOKS, *_STEP_HOOKS}
    assert set(step_hooks(everything())) == set(_STEP_HOOKS)


def test_the_loop_that_is_replaced_has_what_it_needs():
    for name in ("advance", "_num_ready_batches_reached", "update_lr_schedulers"):
        assert hasattr(PlainEpochLoop.__bases__[0], name)


def test_no_optimiser_of_torch_does_more_than_remove_gradients():
    found = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    optimizers = [value for value in found if issubclass(value, torch.optim.Optimizer)]
    assert len(optimizers) > 10
    for optimizer in optimizers:
        assert optimizer.zero_grad is torch.optim.Optimizer.zero_grad, "client_loop.step_plainly does not call it"


def test_the_loop_of_a_copy_collects_what_is_logged():
    template = TrainerTemplate(torch.device("cpu"))
    loop = template.copy().fit_loop.epoch_loop
    assert isinstance(loop._results, PlacedResults), "client_loop.use_plain_steps replaces _TrainingEpochLoop._results"
    assert type(Trainer(logger=False, barebones=True).fit_loop.epoch_loop._results) is PlacedResults.__bases__[0]
    assert loop._results is not template.copy().fit_loop.epoch_loop._results
