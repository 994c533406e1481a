"""Local training: what a client does between receiving the global model and sending its own."""

import copy
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
from fl_lightning.client.trainers import TrainerPerClient
from fl_lightning.client.vectorized import CannotVectorizeError, VectorizedTraining, check_profitable
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import preserved_generators
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, StateLayout
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
        epochs: passes over the client's data per round.
        batch_size: samples per batch; by default that of the source's training loader.
        callbacks: Lightning callbacks of the client's Trainer; every client gets a fresh copy. Those derived from
            :class:`fl_lightning.callbacks.ClientCallback` have access to the round and the client.
        execution: ``trainer`` gives every client a Trainer of its own. ``vectorized`` trains all clients of a round at
            once, which is faster for small networks and equal up to float rounding. ``auto`` does the latter where it
            is possible and faster.
        chunk: how many clients train at once with vectorised execution; by default, a number that fits into memory.
        memory_format: ``channels_last`` keeps the weights of convolutions in the order in which CPUs and recent GPUs
            compute fastest, in training and in evaluation. It changes results by float rounding.
        clock: with ``round``, a client's epoch, step and schedulers begin again in every round. With ``run``, they go
            on over the run, as if the client had taken part in every round so far.
        log_metrics: metrics that the module logs in training and whose mean over the clients the run is to log under
            the same name. Each entry is a name or a prefix of names: ``train_loss``, ``train/``.
        on_error: what happens when a client fails: its training raises an exception, or its update is not finite or
            does not fit the model. ``raise`` stops the run with the last good round kept, ``drop`` goes on without the
            client, as if it had not been selected.
        trainer_flags: further flags of the client's Trainer, such as ``gradient_clip_val`` or ``precision``.
    """

    _next_report = 0.0

    def __init__(
        self,
        epochs: int = 1,
        batch_size: int | None = None,
        callbacks: list[Callback] | None = None,
        execution: Literal["trainer", "vectorized", "auto"] = "trainer",
        chunk: int | None = None,
        memory_format: Literal["contiguous", "channels_last"] = "contiguous",
        clock: Clock = "round",
        log_metrics: list[str] | None = None,
        on_error: Literal["raise", "drop"] = "raise",
        **trainer_flags: Any,
    ) -> None:
        if epochs < 1:
            raise MisconfigurationError(f"epochs={epochs}, but a client must train: set client.epochs to 1 or more")
        if batch_size is not None and batch_size < 1:
            raise MisconfigurationError(f"batch_size={batch_size}: set client.batch_size to 1 or more")
        if execution not in ("trainer", "vectorized", "auto"):
            raise MisconfigurationError(f"execution={execution!r}: set client.execution to trainer, vectorized or auto")
        if chunk is not None and chunk < 1:
            raise MisconfigurationError(f"chunk={chunk}: set client.chunk to 1 or more")
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
        check_clock(clock, trainer_flags)
        _check_flags(trainer_flags)
        self.epochs = epochs
        self.batch_size = batch_size
        self.callbacks = callbacks or []
        self.execution = execution
        self.chunk = chunk
        self.memory_format = memory_format
        self.clock = clock
        self.on_error = on_error
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
            module.to(memory_format=torch.channels_last)  # the global model, so that evaluation is fast too
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
            self.epochs,
            self.clock,
            self.log_metrics or (),
            max_batches,
            **self._trainer_flags,
        )
        for message in _NOISE:
            warnings.filterwarnings("ignore", message)
        self._vectorized = self._vectorize(module, in_place, max_batches)

    def release(self) -> None:
        """Release the client model, the data and the listener."""
        self.on_progress = None
        for attribute in ("_participants", "_trainers", "_vectorized"):
            self.__dict__.pop(attribute, None)

    @property
    def loses_clients(self) -> bool:
        """Whether rounds may lose clients without being stopped by that."""
        return self.on_error == "drop"

    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate | LostClient]:
        groups = (self._vectorized or self._trainers).train_together(clients, round)
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

    @property
    def logged_names(self) -> Collection[str]:
        return self._trainers.logged_names or ()

    def _vectorize(
        self, module: LightningModule, batches_in_place: bool, max_batches: int | None
    ) -> VectorizedTraining | None:
        """Return the vectorised training if it is wanted and possible."""
        if self.execution == "trainer":
            return None
        try:
            if self.execution == "auto":
                check_profitable(module)
            return VectorizedTraining(
                module,
                self._participants,
                batches_in_place,
                self.epochs,
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TrainerTemplate(torch.device("cpu"), max_epochs=1, limit_val_batches=0, strategy=None, **flags)
    except TypeError as error:
        name = re.search(r"'(\w+)'$", str(error))
        flag = name.group(1) if name else ", ".join(flags)
        raise MisconfigurationError(
            f"{flag} cannot be set for a client's Trainer:"
            + (" use client.epochs" if flag == "max_epochs" else " leave it out of client")
        ) from error
