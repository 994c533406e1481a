"""A client's time: whether its epoch, step and schedulers restart in every round or continue over the run."""

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning._lightning.names import LightningModule, rank_zero_warn
from fl_lightning._lightning.progress import ClientTrainer, Past, go_on, steps_per_epoch
from fl_lightning._lightning.trainer import ClientStrategy
from fl_lightning.client.monitors import check_monitors
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.data.batches import ClientBatches

Clock = Literal["round", "run"]

#: hooks that run on the server, where the epoch is the round
_ON_SERVER = ("validation", "test", "predict", "on_validation", "on_test", "on_predict", "on_save", "on_load")


def check_clock(clock: str, epochs: int | Sequence[int], flags: dict[str, Any]) -> None:
    """Reject an unknown clock, and epochs or flags of the client's Trainer that do not go with it."""
    if clock not in ("round", "run"):
        raise MisconfigurationError(f"clock={clock!r}: set client.clock to round or run")
    if clock == "run" and not isinstance(epochs, int):
        raise MisconfigurationError(
            f"epochs={epochs} with clock=run, which counts the same epochs for every client: set client.epochs to a"
            " number, or client.clock to round"
        )
    limit = next((name for name in ("max_steps", "fast_dev_run") if flags.get(name) not in (None, -1, False)), None)
    if clock == "run" and limit is not None:
        raise MisconfigurationError(
            f"{limit}={flags[limit]} with clock=run, which counts steps over the run, so that later rounds would not"
            " train: limit a round with client.epochs or client.limit_train_batches, or set client.clock to round"
        )


class ClientClock:
    """Sets a Trainer's epoch, step and schedulers to where its client starts a round.

    With ``run``, a client starts where it would be if it had taken part in every round so far, whether or not it did.
    So all clients of a round anneal alike, however often each of them was selected, a schedule over the run ends with
    the run, and nothing has to be remembered.

    Args:
        clock: ``round`` or ``run``.
        epochs: local epochs per round.
    """

    def __init__(self, clock: Clock, epochs: int) -> None:
        self.clock = clock
        self.epochs = epochs
        self._schedulers: dict[int, tuple[int, Any]] = {}
        self._warnings: set[str] = set()

    def wind(
        self, trainer: ClientTrainer, batches: ClientBatches, round: Round, logged: Collection[str] | None
    ) -> None:
        """Prepare a Trainer that has not run yet; the rest is done when its optimisers are set up.

        Args:
            trainer: the client's Trainer.
            batches: the client's batches, whose order depends on the local epoch.
            round: the round that the client trains in.
            logged: the metrics that clients log; None if that is not known.
        """
        if self.clock == "run":
            trainer.run_epochs = -1 if round.num_rounds is None else round.num_rounds * self.epochs
            batches.first_epoch = round.number * self.epochs
        assert isinstance(trainer.strategy, ClientStrategy)
        trainer.strategy.server_metrics = _metrics_after(round, round.number - 1)
        trainer.strategy.on_optimizers = lambda: self._start(trainer, round, logged)

    def check_steps(self, trainer: ClientTrainer, steps: int) -> None:
        """Warn if a client's number of steps differs from what the clock counts for a round."""
        if trainer.round_steps is not None and steps != trainer.round_steps:
            self._warn(
                f"a client took {steps} optimiser steps in a round, but clock=run counts {trainer.round_steps}, one per"
                " batch and optimiser: global_step differs from what a single Trainer would show"
            )

    def _start(self, trainer: ClientTrainer, round: Round, logged: Collection[str] | None) -> None:
        configs, module = trainer.lr_scheduler_configs, trainer.lightning_module
        for monitor in check_monitors(configs, round, logged, only_validation=self.clock == "run"):
            self._warn(
                f"a learning-rate scheduler monitors {monitor!r}, which the server measures when a round is over:"
                " the scheduler does nothing before the first validation"
            )
        schedulers = " and a ".join(sorted({type(config.scheduler).__name__ for config in configs}))
        if self.clock == "run":
            if schedulers and not module.automatic_optimization:
                raise MisconfigurationError(
                    f"clock=run, but {type(module).__name__} steps its {schedulers} itself (automatic_optimization="
                    "False), so the position in the schedule is not known: set client.clock to round"
                )
            go_on(trainer, self._past(round))
            trainer.round_steps = self.epochs * steps_per_epoch(trainer)
        elif round.num_rounds != 1 and (reasons := _what_restarts(type(module), schedulers)):
            self._warn(
                f"{type(module).__name__} {' and '.join(reasons)}, but a client's schedulers, current_epoch and"
                " global_step begin again in every round: set client.clock to run to let them continue over the run"
            )

    def _past(self, round: Round) -> Past:
        def validation(epoch: int) -> dict[str, Tensor]:
            # A round is validated after its last local epoch. In its other epochs, the last validation is the
            # previous round's.
            return _metrics_after(round, (epoch + 1) // self.epochs - 1)

        return Past(round.number * self.epochs, (round.number + 1) * self.epochs, validation, self._schedulers)

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            rank_zero_warn(message)


def _metrics_after(round: Round, number: int) -> dict[str, Tensor]:
    """Return what validation had shown after round ``number``, in the form of a Trainer's ``callback_metrics``."""
    values = round.evaluations.after(number)
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def _what_restarts(module_class: type, schedulers: str) -> list[str]:
    """Return why a module would notice that its time begins again in every round."""
    reads = [name for name in ("current_epoch", "global_step") if name in _names_read(module_class)]
    return [f"has a {schedulers}"] * bool(schedulers) + [f"reads {name}" for name in reads]


@cache
def _names_read(module_class: type) -> set[str]:
    """Return all names that a module's own methods refer to, apart from methods that run on the server."""
    own = [base for base in module_class.__mro__ if not issubclass(LightningModule, base)]
    members = [(name, member) for base in own for name, member in vars(base).items()]
    return {
        read
        for name, member in members
        if not name.startswith(_ON_SERVER)
        for code in _codes_of(member)
        for read in code.co_names
    }


def _codes_of(member: Any) -> Iterator[CodeType]:
    """Yield the code of a method or property, and of the functions inside it."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    function = getattr(function, "__wrapped__", function)
    pending = [function.__code__] if isinstance(function, FunctionType) else []
    while pending:
        code = pending.pop()
        yield code
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
