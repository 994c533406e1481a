"""Local training: what a client does between receiving the global model and sending its own."""

import copy
import gc
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning._lightning.delegation import has_batch_hooks
from fl_lightning._lightning.names import Callback, LightningModule, rank_zero_info
from fl_lightning._lightning.package import refuse_other_copy
from fl_lightning._lightning.quiet import without_announcements
from fl_lightning._lightning.trainer import TrainerTemplate
from fl_lightning.client.clock import Clock, check_clock
from fl_lightning.client.cohort import CohortTraining
from fl_lightning.client.model import ClientModel
from fl_lightning.client.participants import Participants, keyed_callbacks
from fl_lightning.client.stragglers import check_dropout, check_epochs, draw_dropouts, draw_epochs
from fl_lightning.client.trainers import TrainerPerClient
from fl_lightning.client.trial import check_num_classes
from fl_lightning.client.vectorized import CannotVectorizeError, VectorizedTraining, check_profitable
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import preserved_generators
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, StateLayout, snapshot
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.data import FederatedDataModule

# Lightning's warnings about clients that users cannot act on. The last does not apply, because evaluation
# synchronises values without sync_dist.
_NOISE = (
    ".*number of training batches .* is smaller than the logging interval",
    ".*does not have many workers",
    ".*defined a `validation_step` but have no `val_dataloader`",
    ".*treespec, LeafSpec.* is deprecated",
    "It is recommended to use .*sync_dist=True",
)

#: seconds between two reports of how far clients have come
_REPORT_INTERVAL = 0.5


class LocalTraining(CohortTraining):
    """How clients train.

    Args:
        epochs: passes over the client's data per round. With ``[1, 5]``, each client draws a number from 1 to 5 in
            every round, as a function of the seed.
        batch_size: samples per batch; by default, the batch size of the source's training loader.
        callbacks: Lightning callbacks of the client's Trainer; every client gets a fresh copy. Callbacks derived from
            :class:`fl_lightning.callbacks.ClientCallback` have access to the round and the client.
        execution: ``trainer`` gives every client a Trainer of its own. ``vectorized`` trains all clients of a round at
            once, which is faster for small networks and equal up to float rounding. ``auto`` does the latter where it
            is possible and faster.
        chunk: how many clients train at once with vectorised execution; by default, a number that fits into memory.
        memory_format: ``channels_last`` keeps the weights of convolutions in the order in which CPUs and recent GPUs
            compute fastest, in training and in evaluation. It changes results by float rounding.
        clock: with ``round``, a client's epoch, step and schedulers restart in every round. With ``run``, they continue
            over the run, as if the client had taken part in every round so far.
        log_metrics: metrics that the module logs in training; the run logs their mean over the clients under the same
            name. Each entry is a name or a prefix of names: ``train_loss``, ``train/``.
        on_error: what happens when a client fails: its training raises an exception or takes too long, or its update is
            not finite or does not fit the model. ``raise`` stops the run and keeps the last good round, ``drop`` goes
            on without the client, as if it had not been selected.
        timeout: seconds after which a client has failed, checked between its steps; by default, there is no limit.
        dropout: probability with which a client drops out of a round, to simulate unreliable clients. It is drawn
            from the seed, the round and the client.
        trainer_flags: further flags of the client's Trainer, such as ``gradient_clip_val`` or ``precision``.
    """

    _next_report = 0.0

    def __init__(
        self,
        epochs: int | list[int] = 1,
        batch_size: int | None = None,
        callbacks: list[Callback] | None = None,
        execution: Literal["trainer", "vectorized", "auto"] = "trainer",
        chunk: int | None = None,
        memory_format: Literal["contiguous", "channels_last"] = "contiguous",
        clock: Clock = "round",
        log_metrics: list[str] | None = None,
        on_error: Literal["raise", "drop"] = "raise",
        timeout: float | None = None,
        dropout: float = 0.0,
        **trainer_flags: Any,
    ) -> None:
        check_epochs(epochs)
        check_dropout(dropout)
        if timeout is not None:
            check_number("timeout", timeout, above=0, reason="it is a time in seconds", setting="client.timeout")
        if batch_size is not None:
            check_number("batch_size", batch_size, at_least=1, setting="client.batch_size")
        if execution not in ("trainer", "vectorized", "auto"):
            raise MisconfigurationError(f"execution={execution!r}: set client.execution to trainer, vectorized or auto")
        if chunk is not None:
            check_number("chunk", chunk, at_least=1, setting="client.chunk")
        if memory_format not in ("contiguous", "channels_last"):
            raise MisconfigurationError(
                f"memory_format={memory_format!r}: set client.memory_format to contiguous or channels_last"
            )
        if on_error not in ("raise", "drop"):
            raise MisconfigurationError(f"on_error={on_error!r}: set client.on_error to raise or drop")
        if isinstance(log_metrics, str):
            raise MisconfigurationError(
                f"log_metrics={log_metrics!r} is not a list: set client.log_metrics to [{log_metrics}]"
            )
        refuse_other_copy(*(callbacks or []))
        check_clock(clock, epochs, trainer_flags)
        _check_flags(trainer_flags)
        self.epochs = epochs
        self.batch_size = batch_size
        self.callbacks = callbacks or []
        self.execution = execution
        self.chunk = chunk
        self.memory_format = memory_format
        self.clock = clock
        self.on_error = on_error
        self.timeout = timeout
        self.dropout = dropout
        self.log_metrics = log_metrics
        self._trainer_flags = trainer_flags

    def prepare(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        algorithm_callbacks: Sequence[Callback] = (),
        store: ClientStore | None = None,
        max_batches: int | None = None,
    ) -> None:
        if self.memory_format == "channels_last":
            for parameter in module.parameters():  # of the global model, so that evaluation is fast too
                if parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        model = ClientModel(module)
        #: the parts of the global model's state, as they were when the fit began
        self.layout = StateLayout(module)
        self._callbacks = [*self.callbacks, *algorithm_callbacks]
        self._participants = Participants(
            self, data, self._callbacks, store or ClientStore(), module.device, model.has_batch_norm
        )
        data.move_to(module.device)
        on_device = data.data.tensors is not None and data.data.tensors[0].device == module.device
        in_place = on_device and not has_batch_hooks(module) and not has_batch_hooks(data.source)
        self._trainers = TrainerPerClient(
            model,
            self._participants,
            in_place,
            self.clock,
            self.log_metrics or (),
            max_batches,
            **self._trainer_flags,
        )
        for message in _NOISE:
            warnings.filterwarnings("ignore", message)
        check_num_classes(module, data)
        self._vectorized = self._vectorize(module, in_place, max_batches)
        gc.freeze()  # what exists now stays, so the collector can skip it when it frees the clients' Trainers

    def try_batch(self, module: LightningModule) -> None:
        """Reject a model or an optimiser that does not fit the data, by training on one batch and discarding it."""
        round = Round(number=0, num_rounds=None, seed=self._participants.data.seed, start=snapshot(module))
        with preserved_generators(), self._participants.no_autocast(), without_announcements():
            self._trainers.try_batch(round)

    def release(self) -> None:
        """Release the client model, the data and the progress listener."""
        gc.unfreeze()
        self.on_progress = None
        for attribute in ("_participants", "_trainers", "_vectorized"):
            self.__dict__.pop(attribute, None)

    @property
    def loses_clients(self) -> bool:
        """Whether a round may lose clients and still go on."""
        return self.on_error == "drop" or self.dropout > 0

    @property
    def most_epochs(self) -> int:
        """The largest number of local epochs."""
        return self.epochs if isinstance(self.epochs, int) else self.epochs[1]

    def epochs_of(self, client: int, round: Round) -> int:
        """Return the number of local epochs of a client in a round."""
        return draw_epochs(self.epochs, round.seed, round.number, client)

    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate | LostClient]:
        gone = self._dropouts(round)
        for client in clients:
            if client in gone:
                yield LostClient(client, "dropout", planned=True)
        remaining = [client for client in clients if client not in gone]
        groups = (self._vectorized or self._trainers).train_together(remaining, round)
        while True:
            with preserved_generators(), self._participants.no_autocast(), without_announcements():
                try:
                    updates = next(groups, None)
                except CannotVectorizeError as reason:  # a later batch, or a layer that is no longer frozen
                    raise _refusal(reason, self.execution) from reason
            if updates is None:
                return
            yield from updates

    def train_personal(
        self, client: int, round: Round, start: Mapping[str, Tensor], callbacks: Sequence[Callback]
    ) -> StateDict:
        """Train a second model of a client on the same batches, with a Trainer, and return its state.

        Args:
            client: the client's number.
            round: the round that the client trains in.
            start: the state to start from.
            callbacks: callbacks of the Trainer; each is copied.
        """
        return self._trainers.train_personal(client, round, start, callbacks)

    def personal_model(self, client: int) -> StateDict:
        """Return the entries in which a client's own model differs from the global one, from all of its callbacks."""
        entries: StateDict = {}
        for key, callback in keyed_callbacks(self._callbacks):
            callback = copy.copy(callback)
            callback.client, callback.memory = client, self._participants.memory(key, client)
            entries |= callback.personal_model()
        return entries

    def report_progress(self, clients_done: Callable[[], float]) -> None:
        """Call :attr:`on_progress` at most twice per second, however short a step is.

        Args:
            clients_done: returns how many clients' worth of training is done since the last update; a client that is
                halfway counts as 0.5.
        """
        if self.on_progress is not None and (now := monotonic()) >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL
            self.on_progress(clients_done())

    def _dropouts(self, round: Round) -> set[int]:
        if self.dropout == 0:
            return set()
        return draw_dropouts(self.dropout, round.seed, round.number, self._participants.data.cohort(round.number))

    @property
    def logged_names(self) -> Collection[str]:
        return self._trainers.logged_names or ()

    def _vectorize(
        self, module: LightningModule, batches_in_place: bool, max_batches: int | None
    ) -> VectorizedTraining | None:
        """Return the vectorised training if it is wanted and possible, otherwise None."""
        if self.execution == "trainer":
            return None
        try:
            if self.execution == "auto":
                check_profitable(module)
            return VectorizedTraining(
                module,
                self._participants,
                batches_in_place,
                self._trainer_flags,
                self.chunk,
                max_batches,
            )
        except CannotVectorizeError as reason:
            if self.execution == "vectorized":
                raise _refusal(reason, self.execution) from reason
            rank_zero_info(f"Clients train one after another, because {reason}")
            return None


def _refusal(reason: CannotVectorizeError, execution: str) -> MisconfigurationError:
    return MisconfigurationError(f"client.execution={execution}, but {reason}: set client.execution to trainer")


def _check_flags(flags: dict[str, Any]) -> None:
    """Reject a flag that the Trainer does not have or that the framework sets, before the first round."""
    if not flags:
        return
    if flags.get("max_steps") == 0:
        raise MisconfigurationError("max_steps=0, but a client must train: set client.max_steps above 0, or to -1")
    for name, value in flags.items():
        if isinstance(value, float):
            check_number(name, value, setting=f"client.{name}")
    if flags.get("limit_train_batches") is not None:
        name, limit = "limit_train_batches", flags["limit_train_batches"]
        check_number(name, limit, above=0, reason="a client must train", setting=f"client.{name}")
    if "accumulate_grad_batches" in flags:
        name, number = "accumulate_grad_batches", flags["accumulate_grad_batches"]
        check_number(name, number, at_least=1, setting=f"client.{name}")
    try:
        _make_trainer(flags)
    except TypeError as error:
        found = re.search(r"'(\w+)'$", str(error))
        flag = found.group(1) if found else ", ".join(flags)
        raise MisconfigurationError(
            f"{flag} cannot be set for a client's Trainer:"
            + (" use client.epochs" if flag == "max_epochs" else " leave it out of client")
        ) from error
    except Exception as error:
        flag = next((name for name in flags if _is_refused(name, flags[name])), "a combination of flags")
        reason = " ".join(str(error).split())
        raise MisconfigurationError(
            f"{flag}={flags.get(flag)!r} is refused by a client's Trainer ({reason}):"
            f" change client.{flag}, or leave it out"
        ) from error


def _make_trainer(flags: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TrainerTemplate(torch.device("cpu"), max_epochs=1, limit_val_batches=0, strategy=None, **flags)


def _is_refused(flag: str, value: Any) -> bool:
    """Return whether a Trainer refuses a flag, whatever the others are."""
    try:
        _make_trainer({flag: value})
    except Exception:
        return True
    return False
