"""Letting a client's Trainer continue where the previous rounds ended."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.names import Trainer


class ClientTrainer(Trainer):
    """A Trainer that can report the ``max_epochs`` of the whole run, although it trains for one round only.

    Attributes:
        run_epochs: number of epochs of the run; -1 if there is no limit, None if the Trainer knows only its round.
        round_steps: number of optimiser steps that a round is counted as, if the Trainer counts over the run.
    """

    run_epochs: int | None = None
    round_steps: int | None = None

    @property
    def max_epochs(self) -> int | None:
        """The number of epochs of the run, if it is set, or else of this Trainer; -1 if there is no limit."""
        return super().max_epochs if self.run_epochs is None else self.run_epochs

    def _run_stage(self) -> Any:
        """Train at once: a client has no sanity check, before which Lightning would save all random states."""
        if not self.training:
            return super()._run_stage()
        self.lightning_module.zero_grad()
        with torch.autograd.set_detect_anomaly(self._detect_anomaly):
            self.fit_loop.run()
        return None


@dataclass
class Past:
    """The epochs before a client's round, as if its Trainer had trained in every round so far.

    Args:
        epochs: number of epochs before the round.
        end: number of epochs when the round is over.
        validation: returns what validation had shown when an epoch was over.
        schedulers: where the schedulers of earlier clients were after some number of epochs, by batches per epoch.
            Continuing from there saves time.
    """

    epochs: int
    end: int
    validation: Callable[[int], Mapping[str, Tensor]]
    schedulers: dict[int, tuple[int, Any]] = field(default_factory=dict)


def steps_per_epoch(trainer: Trainer) -> int:
    """Return how many optimiser steps an epoch takes, which Lightning counts in ``global_step``.

    With manual optimisation, each optimiser is assumed to step once per batch.
    """
    optimizers = 1 if trainer.lightning_module.automatic_optimization else len(trainer.optimizers)
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) * optimizers


def go_on(trainer: Trainer, past: Past) -> None:
    """Set a Trainer's epoch, step and schedulers to where its past ends. Call it once the optimisers are set up.

    Schedulers are stepped as Lightning would have stepped them, because a state that was computed in another way would
    not be the same to the last bit.
    """
    loop = trainer.fit_loop
    loop.setup_data()
    loop.max_epochs = past.end
    loop._resuming_from_checkpoint = True  # otherwise the first epoch would begin to read its batches twice
    if not trainer.lr_scheduler_configs:
        _count_epochs(trainer, past.epochs)
        return
    for optimizer in trainer.optimizers:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch warns that the scheduler steps first
    batches = int(trainer.num_training_batches)
    start, state = past.schedulers.get(batches, (0, None))
    if state is None or start > past.epochs:
        start = 0
    else:
        _load(trainer, state)
        _count_epochs(trainer, start)
    for epoch in range(start, past.epochs):
        _repeat_epoch(trainer, past.validation(epoch))
    if past.epochs > start:
        past.schedulers[batches] = (past.epochs, _save(trainer))


def _count_epochs(trainer: Trainer, epochs: int) -> None:
    trainer.fit_loop.epoch_progress.increment_by(epochs)
    _count_steps(trainer, epochs * int(trainer.num_training_batches), epochs * steps_per_epoch(trainer))


def _count_steps(trainer: Trainer, batches: int, steps: int) -> None:
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.increment_by(batches, is_last_batch=loop.batch_progress.is_last_batch)
    loop._batches_that_stepped += steps
    if trainer.lightning_module.automatic_optimization:
        loop.automatic_optimization.optim_progress.optimizer.step.increment_by(steps)
    else:
        loop.manual_optimization.optim_step_progress.increment_by(steps)


def _repeat_epoch(trainer: Trainer, validation: Mapping[str, Tensor]) -> None:
    """Count an epoch and step the schedulers, in the order of Lightning's training loop but without training."""
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.reset_on_run()
    batches = int(trainer.num_training_batches)
    by_step = any(config.interval == "step" for config in trainer.lr_scheduler_configs)
    for _ in range(batches if by_step else 1):
        if by_step:
            _count_steps(trainer, 1, 0)
            _count_steps(trainer, 0, 0 if loop._should_accumulate() else 1)
        else:
            _count_steps(trainer, batches, steps_per_epoch(trainer))
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        if loop.batch_progress.current.ready == batches:
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
            trainer.callback_metrics.update(validation)
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
    loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    trainer.fit_loop.epoch_progress.increment_by(1)


def _save(trainer: Trainer) -> Any:
    """Return a copy of what the schedulers have set: their own state and the options of the optimisers' groups."""
    schedulers = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    return copy.deepcopy((schedulers, options))


def _load(trainer: Trainer, state: Any) -> None:
    schedulers, options = copy.deepcopy(state)
    for config, values in zip(trainer.lr_scheduler_configs, schedulers, strict=True):
        config.scheduler.load_state_dict(values)
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    for group, values in zip(groups, options, strict=True):
        group.update(values)
