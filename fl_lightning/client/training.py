"""Local training: what a client does between receiving the global model and sending its own."""

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.delegation import has_batch_hooks, with_loaders
from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.package import refuse_other_copy
from fl_lightning._lightning.quiet import without_announcements
from fl_lightning._lightning.trainer import ClientStrategy, TrainerTemplate
from fl_lightning.client.callback import ClientCallback
from fl_lightning.client.model import ClientModel
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import preserved_generators, seed_for, seed_global_generators
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate
from fl_lightning.data import FederatedDataModule

# Lightning's warnings about clients that users cannot act on. The last does not apply, because all ranks evaluate on
# the same data.
_NOISE = (
    ".*number of training batches .* is smaller than the logging interval",
    ".*does not have many workers",
    ".*defined a `validation_step` but have no `val_dataloader`",
    ".*treespec, LeafSpec.* is deprecated",
    "It is recommended to use .*sync_dist=True",
)


class LocalTraining:
    """How a client trains: with its own short-lived Trainer.

    Args:
        epochs: passes over the client's data per round.
        batch_size: samples per batch; by default that of the source's training loader.
        callbacks: Lightning callbacks of the client's Trainer; every client gets a fresh copy. Those derived from
            :class:`fl_lightning.callbacks.ClientCallback` have access to the round and the client.
        trainer_flags: further flags of the client's Trainer, such as ``gradient_clip_val`` or ``precision``.
    """

    def __init__(
        self,
        epochs: int = 1,
        batch_size: int | None = None,
        callbacks: list[Callback] | None = None,
        **trainer_flags: Any,
    ) -> None:
        if epochs < 1:
            raise MisconfigurationError(f"epochs={epochs}, but a client must train: set client.epochs to 1 or more")
        if batch_size is not None and batch_size < 1:
            raise MisconfigurationError(f"batch_size={batch_size}: set client.batch_size to 1 or more")
        refuse_other_copy(*(callbacks or []))
        _check_flags(trainer_flags)
        self.epochs = epochs
        self.batch_size = batch_size
        self.callbacks = callbacks or []
        self._trainer_flags = trainer_flags

    def prepare(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        algorithm_callbacks: Sequence[Callback] = (),
        store: ClientStore | None = None,
    ) -> None:
        """Get ready to train, once the global model is on its device and its state is restored.

        Args:
            module: the global model.
            data: the clients' data.
            algorithm_callbacks: the client's half of the server's algorithm.
            store: holds what the callbacks remember about each client.
        """
        self._data = data
        self._store = store or ClientStore()
        self._callbacks = [*self.callbacks, *algorithm_callbacks]
        self._model = ClientModel(module)
        self._device = module.device
        self._check_batch_norm()
        data.move_to(self._device)
        on_device = data.data.tensors is not None and data.data.tensors[0].device == self._device
        self._batches_in_place = on_device and not has_batch_hooks(module) and not has_batch_hooks(data.source)
        self._template = TrainerTemplate(
            self._device,
            self._callbacks,
            self._batches_in_place,
            max_epochs=self.epochs,
            limit_val_batches=0,
            **self._trainer_flags,
        )
        for message in _NOISE:
            warnings.filterwarnings("ignore", message)

    def release(self) -> None:
        """Release the client model and the data."""
        for attribute in ("_model", "_data", "_template"):
            self.__dict__.pop(attribute, None)

    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate]:
        """Train the clients one after the other, each from the round's start, and yield their updates one by one."""
        for client in clients:
            with preserved_generators(), torch.autocast(self._device.type, enabled=False), without_announcements():
                seed_global_generators(seed_for("client", round.seed, round.number, client))
                update = self._train(client, round)
            yield update

    def train_personal(
        self, client: int, round: Round, start: Mapping[str, Tensor], callbacks: Sequence[Callback]
    ) -> StateDict:
        """Train a second model of a client on the same batches, and return its state.

        Args:
            client: the client's number.
            round: the round that the client trains in.
            start: the state to start from.
            callbacks: callbacks of the Trainer; each is copied.
        """
        model, _ = self._fit(client, round, start, self._template.copy(callbacks))
        return _snapshot(model)

    def personal_model(self, client: int) -> StateDict:
        """Return the entries in which a client's own model differs from the global one, from all of its callbacks."""
        entries: StateDict = {}
        for key, callback in _keyed(self._callbacks):
            callback = copy.copy(callback)
            callback.client, callback.memory = client, self._memory(key, client)
            entries |= callback.personal_model()
        return entries

    def _train(self, client: int, round: Round) -> ClientUpdate:
        trainer = self._template.copy()
        model, strategy = self._fit(client, round, round.start_of(client), trainer)
        update = ClientUpdate(
            client=client,
            state=_snapshot(model),
            num_samples=self._data.num_samples(client, round.number),
            class_counts=self._data.class_counts(client, round.number),
            num_steps=trainer.global_step,
            learning_rate=strategy.learning_rate,
            metrics={} if strategy.mean_loss is None else {"loss": strategy.mean_loss},
        )
        for key, callback in _keyed(trainer.callbacks):  # type: ignore[attr-defined]
            callback.on_upload(update)
            if callback.memory or self._store.has(key, client):
                update.memory[key] = _cloned(callback.memory)
        update.extras = _cloned(update.extras)
        return update

    def _fit(
        self, client: int, round: Round, start: Mapping[str, Tensor], trainer: Trainer
    ) -> tuple[LightningModule, ClientStrategy]:
        self._check_single(client, round.number)
        for key, callback in _keyed(trainer.callbacks):  # type: ignore[attr-defined]
            callback.client, callback.round, callback.local_training = client, round, self
            callback.memory = self._memory(key, client)
        model = self._model.reset(start)
        loader = self._data.client_loader(client, round.number, self.batch_size, self._model.has_batch_norm)
        trainer.fit(model, datamodule=with_loaders(self._data.source, train=loader))
        model.zero_grad(set_to_none=True)  # gradients would take memory while the server aggregates
        assert isinstance(trainer.strategy, ClientStrategy)
        return model, trainer.strategy

    def _memory(self, key: str, client: int) -> StateDict:
        return dict(self._store.get(key, client, self._device) or {})

    def _check_batch_norm(self) -> None:
        if not self._model.has_batch_norm:
            return
        if (self.batch_size or self._data.data.batch_size) == 1:
            raise MisconfigurationError(
                "batch_size=1, but BatchNorm needs two samples per batch: set client.batch_size to 2 or more"
            )
        # If clients redraw their data, only the first round can be checked here; later rounds are checked in `_fit`.
        for client in self._data.cohort(0) if self._data.redraws else range(self._data.num_clients):
            self._check_single(client, 0)

    def _check_single(self, client: int, round: int) -> None:
        if self._model.has_batch_norm and self._data.num_samples(client, round) == 1:
            raise MisconfigurationError(
                f"client {client} has a single sample, but BatchNorm needs two per batch:"
                " share the data among fewer clients, or use another normalisation"
            )


def _keyed(callbacks: Sequence[Callback]) -> list[tuple[str, ClientCallback]]:
    """Return the client callbacks with the keys of their memories; callbacks with equal keys are numbered."""
    keyed: dict[str, ClientCallback] = {}
    for callback in callbacks:
        if isinstance(callback, ClientCallback):
            same = sum(key.partition(" #")[0] == callback.state_key for key in keyed)
            keyed[f"{callback.state_key} #{same + 1}" if same else callback.state_key] = callback
    return list(keyed.items())


def _check_flags(flags: dict[str, Any]) -> None:
    """Reject a flag that the Trainer does not have or that the framework sets, before the first round."""
    if not flags:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TrainerTemplate(torch.device("cpu"), max_epochs=1, limit_val_batches=0, **flags)
    except TypeError as error:
        name = re.search(r"'(\w+)'$", str(error))
        flag = name.group(1) if name else ", ".join(flags)
        raise MisconfigurationError(
            f"{flag} cannot be set for a client's Trainer:"
            + (" use client.epochs" if flag == "max_epochs" else " leave it out of client")
        ) from error


def _cloned(values: StateDict) -> StateDict:
    """Copy tensors, because they may be those of the client model, which the next client overwrites."""
    return {name: value.detach().clone() for name, value in values.items()}


def _snapshot(model: LightningModule) -> StateDict:
    """Copy a model's state; a tensor with two names is copied once."""
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    copies = {id(value): value.detach().clone() for value in state.values()}
    return {name: copies[id(value)] for name, value in state.items()}
