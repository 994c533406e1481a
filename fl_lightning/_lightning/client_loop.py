"""The training loop of clients whose steps no hook or callback observes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from fl_lightning._lightning.names import LightningModule, Precision, Trainer
from fl_lightning._lightning.package import PACKAGE
from fl_lightning._lightning.placed_results import PlacedResults
from fl_lightning._lightning.training_step import step_hooks, takes_batch_index, training_loss

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
else:
    from pytorch_lightning.loops.fetchers import _DataLoaderIterDataFetcher
    from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop


def use_plain_steps(trainer: Trainer) -> None:
    """Let a Trainer's copies take plain steps where that makes no difference, and log at less cost."""
    trainer.fit_loop.epoch_loop.__class__ = PlainEpochLoop
    trainer.fit_loop.epoch_loop._results = PlacedResults(training=True)


class PlainEpochLoop(_TrainingEpochLoop):
    """Skips Lightning's forty hooks in a step if nobody overrides them: they take as long as a small network's step.

    The operations, their order and everything that is counted are the same.
    """

    _plain: bool | None = None
    _takes_index = True

    def advance(self, data_fetcher: Any) -> None:
        """Run a single training batch."""
        if self._plain is None:
            self._plain = _can_be_plain(self.trainer) and not isinstance(data_fetcher, _DataLoaderIterDataFetcher)
            self._takes_index = takes_batch_index(self.trainer.lightning_module)
        if not self._plain or self.restarting:
            super().advance(data_fetcher)
            return
        trainer, progress = self.trainer, self.batch_progress
        module = trainer.lightning_module
        strategy: Any = trainer.strategy
        batch, _, _ = next(data_fetcher)
        index = self.batch_idx + 1
        progress.is_last_batch = data_fetcher.done
        batch = trainer.precision_plugin.convert_input(batch)
        if not strategy.batches_in_place:
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)
        progress.increment_started()
        steps = self.automatic_optimization.optim_progress.optimizer.step
        steps.increment_ready()
        strategy.plain_step(lambda: _training_step(module, strategy, batch, index, self._takes_index))
        steps.increment_completed()
        progress.increment_processed()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if self._results:
            trainer._logger_connector.on_batch_end()
        progress.increment_completed()
        if self._results:
            trainer._logger_connector.update_train_step_metrics()

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        """Never validate within local training; Lightning would find that out anew after every step."""
        return False


def _training_step(module: LightningModule, strategy: Any, batch: Any, index: int, takes_index: bool) -> Tensor | None:
    """Run the module's step under the hook name that ``self.log`` needs, and return its loss."""
    module._current_fx_name = "training_step"
    loss = training_loss(strategy.training_step, batch, index, takes_index)
    module._current_fx_name = None
    return loss


def step_plainly(optimizer: Optimizer, training_step: Callable[[], Tensor | None]) -> None:
    """Take one step of one of torch's optimisers, in the order of Lightning's automatic optimisation.

    Its ``zero_grad`` only removes the gradients, but takes longer to tell the profiler so.
    """
    loss = training_step()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    if loss is not None:
        loss.backward()
    optimizer.step()


def _can_be_plain(trainer: Trainer) -> bool:
    module, optimizers = trainer.lightning_module, trainer.optimizers
    return (
        module.automatic_optimization
        and not trainer.callbacks  # type: ignore[attr-defined]
        and not step_hooks(module)
        and type(trainer.precision_plugin) is Precision
        and trainer.accumulate_grad_batches == 1
        and not trainer.gradient_clip_val
        and len(optimizers) == 1
        and type(optimizers[0]).__module__.startswith("torch.optim.")
        and not isinstance(optimizers[0], LBFGS)
    )
