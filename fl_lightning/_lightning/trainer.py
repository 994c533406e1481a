"""The short-lived Trainer of a client."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.client_device import HostCounting, avoid_waiting, client_accelerator
from fl_lightning._lightning.client_loop import step_plainly, use_plain_steps
from fl_lightning._lightning.client_module import keep_metrics_local
from fl_lightning._lightning.names import (
    Callback,
    DummyLogger,
    LightningEnvironment,
    PassThroughProfiler,
    Timer,
    Trainer,
)
from fl_lightning._lightning.progress import ClientTrainer
from fl_lightning._lightning.quiet import without_announcements


class TrainerTemplate:
    """A Trainer that is never run, only copied: each copy trains or evaluates one client and is discarded.

    Copying takes a seventh of the time of creating a Trainer, which searches for GPUs and for packages that add
    callbacks. A copy uses one device and has no logs, checkpoints, progress bar or process group.

    Args:
        device: device that the model is on.
        callbacks: callbacks of every Trainer; each Trainer gets its own copies.
        batches_in_place: whether batches are already on the device and no hook of the module or the data changes them.
        strategy: strategy of every Trainer; by default, a :class:`ClientStrategy`.
        flags: further flags of the Trainer.
    """

    def __init__(
        self,
        device: torch.device,
        callbacks: Sequence[Callback] = (),
        batches_in_place: bool = False,
        strategy: "ClientStrategy | None" = None,
        **flags: Any,
    ) -> None:
        flags.setdefault("profiler", _NoProfiler())
        with without_announcements():
            self._trainer = ClientTrainer(
                accelerator=client_accelerator(device),
                devices=1,
                num_nodes=1,
                strategy=strategy or ClientStrategy(device, batches_in_place),
                plugins=[LightningEnvironment()],
                callbacks=list(callbacks),
                logger=DummyLogger(),  # a client may access self.logger.experiment
                num_sanity_val_steps=0,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                enable_autolog_hparams=False,
                use_distributed_sampler=False,
                barebones=False,
                **flags,
            )
        # Callbacks that an installed package adds to every Trainer belong to the server's Trainer only.
        kept = [callback for callback in self._callbacks if callback in callbacks or isinstance(callback, Timer)]
        self._trainer.callbacks = kept  # type: ignore[attr-defined]
        avoid_waiting(self._trainer)
        use_plain_steps(self._trainer)

    @property
    def _callbacks(self) -> list[Callback]:
        return self._trainer.callbacks  # type: ignore[attr-defined]

    def stop_after(self, batches: int) -> None:
        """Let every copy train on this many batches only, whatever its flags say."""
        self._trainer.fit_loop.max_epochs = 1
        self._trainer.limit_train_batches = batches

    def copy(self, callbacks: Sequence[Callback] | None = None) -> ClientTrainer:
        """Return a Trainer that has not run yet. It shares only the profiler and the dummy logger with other copies.

        Args:
            callbacks: replace the template's callbacks; each is copied.
        """
        shared = [self._trainer.profiler, *self._trainer.loggers]  # type: ignore[attr-defined]
        trainer = copy.deepcopy(self._trainer, memo={id(item): item for item in shared})
        if callbacks is not None:
            timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]  # type: ignore[attr-defined]
            trainer.callbacks = [*copy.deepcopy(list(callbacks)), *timers]  # type: ignore[attr-defined]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            keep_metrics_local(callback)
        return trainer


class _NoProfiler(PassThroughProfiler):
    """Does nothing, without the generator that Lightning's ``PassThroughProfiler`` enters for every hook."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


_NOTHING = nullcontext()


class ClientStrategy(HostCounting):
    """Leaves the model where it is, because the next client uses the same tensors, and records loss and learning rate.

    A callback could record them too, but Lightning would call it ten times per step, which for a small network takes as
    long as the step.

    Args:
        device: device that the model is on.
        batches_in_place: whether batches are already on the device and no hook of the module or the data changes them.

    Attributes:
        on_optimizers: called once the optimisers and schedulers are set up.
        server_metrics: what the server measured; schedulers and callbacks find it among the Trainer's metrics.
        on_batch: called before every training step.
        steps_before: the Trainer's ``global_step`` when its training began.
        change_rate: returns the learning rate of the next step, given the optimiser's own.
        learning_rate: the learning rate of the last step.
    """

    def __init__(self, device: torch.device, batches_in_place: bool = False) -> None:
        super().__init__(device)
        self.batches_in_place = batches_in_place
        self.change_rate: Callable[[float], float] | None = None
        self.on_optimizers: Callable[[], None] | None = None
        self.on_batch: Callable[[], None] | None = None
        self.server_metrics: dict[str, Tensor] = {}
        self.steps_before = 0
        self.learning_rate: float | None = None
        self._loss_sum: Tensor | None = None
        self._losses = 0

    @property
    def mean_loss(self) -> Tensor | None:
        """The mean loss over the training steps, kept on the device because reading every loss would stall a GPU."""
        return None if self._loss_sum is None else self._loss_sum / self._losses

    def model_to_device(self) -> None:
        pass

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        return batch if self.batches_in_place else super().batch_to_device(batch, device, dataloader_idx)

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if self.on_optimizers is not None:
            self.on_optimizers()
        trainer.callback_metrics.update(self.server_metrics)
        self.steps_before = trainer.global_step

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.on_batch is not None:
            self.on_batch()
        output = super().training_step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, dict) else output
        if isinstance(loss, Tensor):
            loss = loss.detach().float()
            self._loss_sum = loss if self._loss_sum is None else self._loss_sum + loss
            self._losses += 1
        return output

    def optimizer_step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with _changed_rates(optimizer, self.change_rate):
            self.learning_rate = float(optimizer.param_groups[0]["lr"])  # a scheduler may change it after the last step
            return super().optimizer_step(optimizer, *args, **kwargs)

    def plain_step(self, training_step: Callable[[], Tensor | None]) -> None:
        """Take a step without Lightning's hooks; ``training_step`` returns the loss."""
        optimizer = self.optimizers[0]
        with _changed_rates(optimizer, self.change_rate):
            self.learning_rate = float(optimizer.param_groups[0]["lr"])
            step_plainly(optimizer, training_step)

    def teardown(self) -> None:
        self.optimizers = []
        self.precision_plugin.teardown()


@contextmanager
def _changed_rates(optimizer: Optimizer, change: Callable[[float], float] | None) -> Iterator[None]:
    """Change the learning rates for one step. A scheduler computes the next rate from the optimiser's own."""
    if change is None:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = change(rate)
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
