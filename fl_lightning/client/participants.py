"""The clients of a round, as every kind of local training sees them: their batches, callbacks and updates."""

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning._lightning.names import Callback
from fl_lightning.client.callback import ClientCallback, overrides
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, is_unchanged
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate, state_bytes
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.partitions.grouping import sizes_of

if TYPE_CHECKING:
    from fl_lightning.client.training import LocalTraining

#: a client's callbacks with the keys of their memories
KeyedCallbacks = list[tuple[str, ClientCallback]]


class Participants:
    """What clients have and send, regardless of how they train.

    Args:
        local_training: how clients train.
        data: the clients' data.
        callbacks: the callbacks of every client.
        store: holds what the callbacks remember about each client.
        device: device that the model is on.
        batch_norm: whether the model has BatchNorm, which cannot train on a batch of one sample.
    """

    def __init__(
        self,
        local_training: "LocalTraining",
        data: FederatedDataModule,
        callbacks: Sequence[Callback],
        store: ClientStore,
        device: torch.device,
        batch_norm: bool,
    ) -> None:
        self.local_training = local_training
        self.data = data
        self.callbacks = callbacks
        self.device = device
        self._store = store
        self._batch_norm = batch_norm
        self._check_batches()

    def loader(self, client: int, round: int, callbacks: Sequence[Callback] = ()) -> Any:
        """Return a loader over a client's batches in a round, as its callbacks change them."""
        self._check_single(client, round)
        loader = self.data.client_loader(client, round, self.local_training.batch_size, self._batch_norm)
        changing = [each for each in callbacks if isinstance(each, ClientCallback) and overrides(each, "on_batch")]
        return ChangedBatches(loader, changing) if changing else loader

    def trial_loader(self) -> Any:
        """Return a loader over one batch of the training data, for a trial."""
        return self.data.trial_loader(self.local_training.batch_size)

    def copy_callbacks(self, client: int, round: Round) -> KeyedCallbacks:
        """Return a client's own copies of the client callbacks."""
        return self.introduce(copy.deepcopy(list(self.callbacks)), client, round)

    def introduce(self, callbacks: Sequence[Callback], client: int, round: Round) -> KeyedCallbacks:
        """Give callbacks access to their client and its round, and return those that are client callbacks."""
        keyed = keyed_callbacks(callbacks)
        for key, callback in keyed:
            callback.client, callback.round, callback.local_training = client, round, self.local_training
            callback.memory = self.memory(key, client)
        return keyed

    def no_autocast(self) -> torch.autocast:
        """Return a context in which clients train in their own precision, not in the server's."""
        return torch.autocast(self.device.type, enabled=False)

    def memory(self, key: str, client: int) -> StateDict:
        """Return what a callback remembers about a client."""
        return dict(self._store.get(key, client, self.device) or {})

    def update(
        self, client: int, round: Round, state: StateDict, callbacks: KeyedCallbacks, **report: Any
    ) -> ClientUpdate:
        """Return what a client sends, once its callbacks have added their share.

        Frozen entries that the client did not change need not be sent, so they are the tensors of the round's start.

        Args:
            client: the client's number.
            round: the round that it trained in.
            state: its state after training, whose tensors nobody else changes.
            callbacks: its callbacks.
            report: further fields of the update, such as ``num_steps``.
        """
        kept = self.unchanged(state, round)
        update = ClientUpdate(
            client=client,
            state={**state, **kept},
            num_bytes=state_bytes({name: value for name, value in state.items() if name not in kept}),
            num_samples=self.data.num_samples(client, round.number),
            class_counts=self.data.class_counts(client, round.number),
            **report,
        )
        for key, callback in callbacks:
            callback.on_upload(update)
            if callback.memory or self._store.has(key, client):
                update.memory[key] = _cloned(callback.memory)
        update.extras = _cloned(update.extras)
        return update

    def unchanged(self, state: StateDict, round: Round) -> StateDict:
        """Return the entries of the round's start that a client need not send: frozen ones that it did not change.

        Only frozen entries are compared, because on a GPU the host would have to wait for every comparison.
        """
        layout, start = self.local_training.layout, round.start
        frozen = [name for name in state if layout.aliases.get(name, name) in layout.rest]
        return {name: start[name] for name in frozen if is_unchanged(state[name], start.get(name))}

    def _check_batches(self) -> None:
        """Reject batches of a single sample, if there is BatchNorm."""
        if not self._batch_norm:
            return
        if (self.local_training.batch_size or self.data.data.batch_size) == 1:
            raise MisconfigurationError(
                "batch_size=1, but BatchNorm needs two samples per batch: set client.batch_size to 2 or more"
            )
        # If clients redraw their data, only the first round can be checked here; `loader` checks later rounds.
        if self.data.redraws:
            suspects = self.data.cohort(0)
        else:
            suspects = np.flatnonzero(sizes_of(self.data.all_indices()) == 1).tolist()
        for client in suspects:
            self._check_single(client, 0)

    def _check_single(self, client: int, round: int) -> None:
        if self._batch_norm and self.data.num_samples(client, round) == 1:
            raise MisconfigurationError(
                f"client {client} has a single sample, but BatchNorm needs two per batch:"
                " share the data among fewer clients, or use another normalisation"
            )


class ChangedBatches:
    """A loader whose batches pass through a client's callbacks.

    Args:
        loader: the client's loader.
        callbacks: the client's callbacks that change batches, in this order.
    """

    def __init__(self, loader: Any, callbacks: Sequence[ClientCallback]) -> None:
        self._loader = loader
        self._callbacks = callbacks
        self.batch_sampler = loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            for callback in self._callbacks:
                batch = callback.on_batch(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)


def keyed_callbacks(callbacks: Sequence[Callback]) -> KeyedCallbacks:
    """Return the client callbacks with the keys of their memories; callbacks with equal keys are numbered."""
    keyed: dict[str, ClientCallback] = {}
    for callback in callbacks:
        if isinstance(callback, ClientCallback):
            same = sum(key.partition(" #")[0] == callback.state_key for key in keyed)
            keyed[f"{callback.state_key} #{same + 1}" if same else callback.state_key] = callback
    return list(keyed.items())


def _cloned(values: dict[str, Tensor]) -> StateDict:
    """Copy tensors, because they may be parts of the client model, which the next client overwrites."""
    return {name: value.detach().clone() for name, value in values.items()}
