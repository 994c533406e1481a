"""Local training: what a client does between receiving the global model and sending its own."""

import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from fl_lightning.data import FederatedDataModule
from fl_lightning.delegation import blank_hooks, has_batch_hooks
from fl_lightning.randomness import seed_for, seed_global_generators
from fl_lightning.resident import ResidentClient
from fl_lightning.rounds import Round
from fl_lightning.state import StateDict
from fl_lightning.trainers import ResidentStrategy, quick_starts, short_lived_trainer
from fl_lightning.update import ClientUpdate

# What Lightning would say of every client, and nobody can act on; the last: all ranks evaluate on the same data.
_NOISE = (
    ".*number of training batches .* is smaller than the logging interval",
    ".*does not have many workers",
    ".*defined a `validation_step` but have no `val_dataloader`",
    ".*treespec, LeafSpec.* is deprecated",
    "It is recommended to use .*sync_dist=True",
)


class ClientCallback(Callback):
    """A callback of the client's Trainer that can see the federation: the client's half of an algorithm.

    Every client gets a fresh copy in every round, with these attributes set before its training starts.
    """

    client: int
    round: Round
    local_training: "LocalTraining"

    def on_upload(self, update: ClientUpdate) -> None:
        """Called after the training: what is put into ``update.extras`` is sent to the server too."""


class LocalTraining:
    """How a client trains: by a short-lived Trainer of its own.

    Args:
        epochs: passes over the client's data a round.
        batch_size: samples a batch; by default that of the source's training loader.
        callbacks: Lightning callbacks of the client's Trainer; every client gets a fresh copy. Those derived from
            :class:`fl_lightning.callbacks.ClientCallback` can see round and client.
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
            raise MisconfigurationException(f"epochs={epochs}, but a client trains: set client.epochs to 1 or more")
        if batch_size is not None and batch_size < 1:
            raise MisconfigurationException(f"batch_size={batch_size}: set client.batch_size to 1 or more")
        _check_flags(trainer_flags)
        self.epochs = epochs
        self.batch_size = batch_size
        self.callbacks = callbacks or []
        self._trainer_flags = trainer_flags

    def prepare(
        self, module: LightningModule, data: FederatedDataModule, algorithm_callbacks: Sequence[Callback] = ()
    ) -> None:
        """Called once, when the global model is on its device and its state is restored.

        Args:
            module: the global model.
            data: the clients' data.
            algorithm_callbacks: the client's half of the server's algorithm.
        """
        self._data = data
        self._algorithm_callbacks = list(algorithm_callbacks)
        self._resident = ResidentClient(module)
        self._device = module.device
        self._check_batch_norm()
        data.move_to(self._device)
        on_device = data.data.tensors is not None and data.data.tensors[0].device == self._device
        self._batches_in_place = on_device and not has_batch_hooks(module) and not has_batch_hooks(data.source)
        for message in _NOISE:
            warnings.filterwarnings("ignore", message)

    def release(self) -> None:
        """Called once, at the end: lets go of the client model and the data."""
        self.__dict__.pop("_resident", None)
        self.__dict__.pop("_data", None)

    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate]:
        """Trains the clients one after the other, each from the round's start, and gives their updates as they come."""
        with isolate_rng(), torch.autocast(self._device.type, enabled=False), quick_starts():
            for client in clients:
                seed_global_generators(seed_for("client", round.seed, round.number, client))
                yield self._train(client, round)

    def _train(self, client: int, round: Round) -> ClientUpdate:
        self._check_single(client, round.number)
        model = self._resident.play(round.start_of(client))
        loader = self._data.client_loader(client, round.number, self.batch_size, self._resident.has_batch_norm)
        callbacks = self._callbacks_for(client, round)
        source = with_loader(self._data.source, loader)
        strategy = ResidentStrategy(self._device, self._batches_in_place)
        trainer = self._trainer(strategy, callbacks)
        trainer.fit(model, datamodule=source)
        update = ClientUpdate(
            client=client,
            state=_snapshot(model),
            num_samples=self._data.num_samples(client, round.number),
            class_counts=self._data.class_counts(client, round.number),
            num_steps=trainer.global_step,
            learning_rate=strategy.learning_rate,
            metrics={} if strategy.mean_loss is None else {"loss": strategy.mean_loss},
        )
        for callback in callbacks:
            if isinstance(callback, ClientCallback):
                callback.on_upload(update)
        return update

    def _trainer(self, strategy: ResidentStrategy, callbacks: list[Callback]) -> Trainer:
        return short_lived_trainer(
            strategy, callbacks=callbacks, max_epochs=self.epochs, limit_val_batches=0, **self._trainer_flags
        )

    def _callbacks_for(self, client: int, round: Round) -> list[Callback]:
        callbacks = copy.deepcopy([*self.callbacks, *self._algorithm_callbacks])
        for callback in callbacks:
            if isinstance(callback, ClientCallback):
                callback.client, callback.round, callback.local_training = client, round, self
        return callbacks

    def _check_batch_norm(self) -> None:
        if not self._resident.has_batch_norm:
            return
        if (self.batch_size or self._data.data.batch_size) == 1:
            raise MisconfigurationException(
                "batch_size=1, but BatchNorm needs two samples a batch: set client.batch_size to 2 or more"
            )
        # Of clients that redraw, the first round is known; each later one is looked at when it comes.
        for client in self._data.cohort(0) if self._data.redraws else range(self._data.num_clients):
            self._check_single(client, 0)

    def _check_single(self, client: int, round: int) -> None:
        if self._resident.has_batch_norm and self._data.num_samples(client, round) == 1:
            raise MisconfigurationException(
                f"client {client} has a single sample, but BatchNorm needs two a batch:"
                " share the data among fewer clients, or use another normalisation"
            )


def _check_flags(flags: dict[str, Any]) -> None:
    """A flag that a Trainer does not have, or that is the framework's, shows here and not in the first round."""
    if not flags:
        return
    try:
        with warnings.catch_warnings(), quick_starts():
            warnings.simplefilter("ignore")
            short_lived_trainer(
                ResidentStrategy(torch.device("cpu")), callbacks=[], max_epochs=1, limit_val_batches=0, **flags
            )
    except TypeError as error:
        name = re.search(r"'(\w+)'$", str(error))
        flag = name.group(1) if name else ", ".join(flags)
        raise MisconfigurationException(
            f"{flag} is no flag of a client's Trainer that can be set:"
            + (" use client.epochs" if flag == "max_epochs" else " leave it out of client")
        ) from error


def with_loader(source: LightningDataModule, loader: Any) -> LightningDataModule:
    """The source with one client's batches: its other attributes and its batch hooks are there as in a plain run."""
    data = copy.copy(source)
    data.train_dataloader = lambda: loader  # type: ignore[method-assign]
    blank_hooks(data, LightningDataModule, ("prepare_data", "setup", "teardown"))
    return data


def _snapshot(model: LightningModule) -> StateDict:
    """A copy of the state; a tensor under two names is copied once."""
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    copies = {id(value): value.detach().clone() for value in state.values()}
    return {name: copies[id(value)] for name, value in state.items()}
