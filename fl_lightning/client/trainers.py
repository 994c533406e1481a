"""Local training with a short-lived Trainer per client, one client after another."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fl_lightning._lightning.delegation import with_loaders
from fl_lightning._lightning.names import Callback, LightningModule, Trainer, rank_zero_warn
from fl_lightning._lightning.progress import ClientTrainer
from fl_lightning._lightning.trainer import ClientStrategy, TrainerTemplate
from fl_lightning.client.callback import Progress, overrides
from fl_lightning.client.clock import ClientClock, Clock
from fl_lightning.client.failures import Deadline, lost_client
from fl_lightning.client.model import ClientModel
from fl_lightning.client.monitors import MonitorNotKnownError, ignore_monitors
from fl_lightning.client.participants import Participants, keyed_callbacks
from fl_lightning.client.trial import explain_trial
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.optimizers import check_optimizer, check_scheduler
from fl_lightning.core.randomness import seed_for, seed_global_generators
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, snapshot
from fl_lightning.core.update import ClientUpdate, LostClient


class TrainerPerClient:
    """Trains clients one after another: the one client model is reset, and a copied Trainer trains it.

    Args:
        model: the client model.
        participants: the clients' batches, callbacks and updates.
        batches_in_place: whether batches are already on the device and no hook of the module or the data changes them.
        clock: whether a client's epoch, step and schedulers restart in every round.
        log_metrics: names, or prefixes of names, of the metrics that clients report.
        max_batches: stop every client after this many batches, for a trial run.
        flags: further flags of the Trainer.
    """

    def __init__(
        self,
        model: ClientModel,
        participants: Participants,
        batches_in_place: bool,
        clock: Clock,
        log_metrics: Sequence[str],
        max_batches: int | None,
        **flags: Any,
    ) -> None:
        self._model = model
        self._participants = participants
        self._local_training = participants.local_training
        self._clock = ClientClock(clock, self._local_training.most_epochs)
        self._deadline = Deadline(None)
        self._log_metrics = tuple(log_metrics)
        #: the metrics that clients log in training; None before a client of this process has trained
        self.logged_names: frozenset[str] | None = None
        self._template = TrainerTemplate(
            participants.device,
            participants.callbacks,
            batches_in_place,
            max_epochs=self._local_training.most_epochs,
            limit_val_batches=0,
            strategy=None,
            **flags,
        )
        if max_batches is not None:
            self._template.stop_after(max_batches)

    def try_batch(self, round: Round) -> None:
        """Train on one batch and keep nothing of it, to reject a model or an optimiser that does not fit the data.

        The batch has all classes of the data if it is large enough. Callbacks do not take part, unless the batch fails
        without them: they may prepare the model.

        Args:
            round: a round that starts from the global model.
        """
        loader = self._participants.trial_loader()
        try:
            self._train_on_trial(0, round, loader)
        except MisconfigurationError:
            raise
        except Exception as error:
            try:
                self._train_on_trial(0, round, loader, self._participants.callbacks)
            except Exception:
                explained = explain_trial(error, self._model.module, next(iter(loader), None))
                if explained is not None:
                    raise explained from error  # otherwise, the first client shows the error of the user's code

    def train_together(self, clients: Sequence[int], round: Round) -> Iterator[list[ClientUpdate | LostClient]]:
        """Train the clients one after another, each from the round's start, and yield each update by itself."""
        for client in clients:
            yield [self._try(client, round)]
        gc.collect()  # Trainers are reference cycles

    def train_personal(
        self, client: int, round: Round, start: Mapping[str, Tensor], callbacks: Sequence[Callback]
    ) -> StateDict:
        """Train a second model of a client on the same batches, and return its state."""
        trainer = self._template.copy(callbacks)
        _strategy(trainer).on_batch = self._deadline.check
        return snapshot(self._fit(client, round, start, trainer))

    def _try(self, client: int, round: Round) -> ClientUpdate | LostClient:
        try:
            return self._train(client, round)
        except MisconfigurationError:  # not the client's fault
            raise
        except Exception as error:
            return lost_client(client, error)

    def _train(self, client: int, round: Round) -> ClientUpdate:
        self._deadline = Deadline(self._local_training.timeout)
        try:
            update = self._train_once(client, round)
        except MonitorNotKnownError:
            self._train_on_trial(client, round)
            update = self._train_once(client, round)
        self._deadline.check()
        return update

    def _train_once(self, client: int, round: Round) -> ClientUpdate:
        seed_global_generators(seed_for("client", round.seed, round.number, client))
        trainer = self._template.copy()
        strategy = _strategy(trainer)
        epochs = self._local_training.epochs_of(client, round)
        strategy.on_batch = partial(self._between_steps, partial(self._share, trainer, epochs))
        model = self._fit(client, round, round.start_of(client), trainer)
        num_steps = trainer.global_step - strategy.steps_before
        self._clock.check_steps(trainer, num_steps)
        update = self._participants.update(
            client,
            round,
            self._copied_state(model, round),
            keyed_callbacks(trainer.callbacks),  # type: ignore[attr-defined]
            num_steps=num_steps,
            learning_rate=strategy.learning_rate,
            metrics={} if strategy.mean_loss is None else {"loss": strategy.mean_loss},
            logged=self._logged_by(trainer),
        )
        # The callbacks hold tensors of the client, and the Trainer, which is a reference cycle, stays in memory until
        # the garbage collector runs.
        trainer.callbacks.clear()  # type: ignore[attr-defined]
        return update

    def _between_steps(self, share: Callable[[], float]) -> None:
        self._deadline.check()
        self._local_training.report_progress(share)

    def _share(self, trainer: Trainer, epochs: int) -> float:
        """Return what fraction of a client's training was done when its current batch began."""
        done = trainer.current_epoch % epochs
        return (done + trainer.fit_loop.batch_idx / trainer.num_training_batches) / epochs

    def _copied_state(self, model: LightningModule, round: Round) -> StateDict:
        """Copy a client's state, because the next client uses the same tensors. A frozen backbone is not copied."""
        state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
        copies = {id(state[name]): value for name, value in self._participants.unchanged(state, round).items()}
        for value in state.values():
            if id(value) not in copies:
                copies[id(value)] = value.detach().clone()
        return {name: copies[id(value)] for name, value in state.items()}

    def _train_on_trial(
        self, client: int, round: Round, loader: Any = None, callbacks: Sequence[Callback] = ()
    ) -> None:
        """Train a client on one batch, without an update, and note which metrics it logs."""
        trainer = self._template.copy(callbacks)
        trainer.limit_train_batches = trainer.fit_loop.max_epochs = 1
        self._fit(client, round, round.start_of(client), trainer, trial=True, loader=loader)
        self._logged_by(trainer)

    def _fit(
        self,
        client: int,
        round: Round,
        start: Mapping[str, Tensor],
        trainer: ClientTrainer,
        trial: bool = False,
        loader: Any = None,
    ) -> LightningModule:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._participants.introduce(callbacks, client, round)
        model = self._model.reset(start)
        loader = loader or self._participants.loader(client, round.number, callbacks)
        strategy = _strategy(trainer)
        epochs = self._local_training.epochs_of(client, round)
        strategy.change_rate = self._rate_schedule(trainer, epochs)
        trainer.fit_loop.max_epochs = min(epochs, trainer.fit_loop.max_epochs or epochs)  # a trial run has fewer
        if trial:
            strategy.on_optimizers = lambda: _check_optimizers(trainer)
        else:
            self._clock.wind(trainer, loader.batch_sampler, round, self.logged_names)
        trainer.fit(model, datamodule=with_loaders(self._participants.data.source, train=loader))
        model.zero_grad(set_to_none=True)  # gradients would take memory while the server aggregates
        return model

    def _rate_schedule(self, trainer: Trainer, epochs: int) -> Callable[[float], float] | None:
        """Return how the client's callbacks change the learning rate of the next step; None if none of them does."""
        callbacks = [
            callback
            for _, callback in keyed_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
            if overrides(callback, "learning_rate")
        ]
        if not callbacks:
            return None

        def change(rate: float) -> float:
            epoch, batches = trainer.current_epoch % epochs, int(trainer.num_training_batches)
            for callback in callbacks:
                rate = callback.learning_rate(rate, Progress(epoch, trainer.fit_loop.batch_idx, batches))
            return rate

        return change

    def _logged_by(self, trainer: Trainer) -> dict[str, Tensor]:
        """Return the requested metrics that the client logged, with their values at the end of its training."""
        if self.logged_names is not None and not self._log_metrics:
            return {}
        from_server = _strategy(trainer).server_metrics
        own = {name: value for name, value in trainer.callback_metrics.items() if value is not from_server.get(name)}
        if self.logged_names is None:
            self.logged_names = frozenset(own)
            for wanted in self._log_metrics:
                if not any(name.startswith(wanted) for name in own):
                    known = ", ".join(sorted(own)) or "nothing"
                    rank_zero_warn(f"log_metrics has {wanted!r}, but a client logged {known}")
        return {name: value for name, value in own.items() if name.startswith(self._log_metrics)}


def _check_optimizers(trainer: Trainer) -> None:
    """Reject optimisers and schedulers whose settings are not finite, and let schedulers ignore missing metrics."""
    for optimizer in trainer.optimizers:
        check_optimizer(optimizer, "the client's optimiser")
    for config in trainer.lr_scheduler_configs:
        check_scheduler(config.scheduler, "the client's scheduler")
    ignore_monitors(trainer)


def _strategy(trainer: Trainer) -> ClientStrategy:
    assert isinstance(trainer.strategy, ClientStrategy)
    return trainer.strategy
