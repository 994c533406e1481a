"""A node: holds the data of one or more clients and trains them when the server asks."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning import __version__
from fl_lightning._lightning.client_module import without_compilation
from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.quiet import without_announcements
from fl_lightning._lightning.server_trainer import keep_samplers, leave_model_unwrapped
from fl_lightning._lightning.trainer import TrainerTemplate
from fl_lightning.aggregation import Federation
from fl_lightning.callbacks import FederatedServer
from fl_lightning.callbacks.clients.evaluation import client_metrics
from fl_lightning.callbacks.run.preparation import belongs_to_clients
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import preserved_generators
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import LostClient
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.partitions.base import Indices, Partition
from fl_lightning.flower.memory import NodeMemory
from fl_lightning.flower.packet import Packet
from fl_lightning.flower.protocol import (
    Request,
    entries_of,
    read_evaluation,
    read_request,
    write_loss,
    write_update,
)
from fl_lightning.module import FederatedModule, RoundRunner

_LOG = logging.getLogger(__name__)

#: answers one packet
Answer = Callable[[Packet], Packet]


class Undivided(Partition):
    """A partition that gives all samples to a single client, in the order of the data.

    Args:
        needs_labels: whether the labels are needed, for class counts.
    """

    def __init__(self, needs_labels: bool) -> None:
        super().__init__(num_clients=1)
        self.needs_labels = needs_labels

    def assign(self, labels: np.ndarray, seed: int) -> Sequence[Indices]:
        return [np.arange(len(labels))]


class OwnData(FederatedDataModule):
    """The data of a node with a single client: all of it is the client's, whatever its number."""

    def indices(self, client: int, round: int = 0) -> Indices:
        """Return the indices of all samples."""
        return super().indices(0, round)


class Node(RoundRunner):
    """Answers the server's requests until the node ends. It takes the server's place in a node's Trainer.

    The Trainer runs a single round that lasts until the node ends, so Lightning sets up the module, moves it to its
    device and loads the data exactly once.

    Args:
        server: the algorithm and how clients train, from the same configuration as the server's.
        clients: the clients that this node has.
        settings: the settings that must agree with the server's, by key.
        memory: keeps what the node remembers about its clients.
        serve: called with a function that answers a packet; returns when the node should end.
    """

    optimizer = None

    def __init__(
        self,
        server: FederatedServer,
        clients: Callable[[FederatedDataModule], Sequence[int]],
        settings: Mapping[str, Any],
        memory: NodeMemory,
        serve: Callable[[Answer], None],
    ) -> None:
        self.server = server
        self.clients = clients
        self._settings = settings
        self._memory = memory
        self._serve = serve
        self._store = ClientStore()
        self._module_callbacks: list[Callback] = []

    def prepare_trainer(self, trainer: Trainer) -> None:
        """Change nothing: a node's Trainer has no callbacks but this one."""

    def assign_callbacks(self, callbacks: Sequence[Callback]) -> list[Callback]:
        self._module_callbacks = [callback for callback in callbacks if belongs_to_clients(callback)]
        return []

    def resize(self, module: LightningModule, state: Mapping[str, Tensor]) -> None:
        self.server.aggregator.resize(module, state)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Adapt the Trainer to rounds."""
        without_compilation(pl_module)
        keep_samplers(trainer)
        leave_model_unwrapped(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the client's half of the algorithm and local training, now that the model is on its device."""
        module, data = pl_module.module, trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(module, LightningModule)
        server = self.server
        server.aggregator.memory = self._store.part(type(server.aggregator).__name__)
        # The number of clients does not matter here: only the server's half of an algorithm uses it.
        federation = Federation(
            data.num_clients, data.seed, server.weighting, server.optimizer, server.client, data.selection
        )
        server.aggregator.prepare(module, federation)
        callbacks = [*self._module_callbacks, *server.aggregator.client_callbacks()]
        server.client.prepare(module, data, callbacks, self._store)

    def run_round(self, pl_module: FederatedModule, clients: list[int]) -> None:
        """Serve until the node ends."""
        module, data = pl_module.module, pl_module.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(module, LightningModule)
        own = frozenset(self.clients(data))

        def answer(packet: Packet) -> Packet:
            try:
                if "evaluate" in packet.note:
                    return self._evaluate(module, data, packet, own)
                if "client" in packet.note:
                    return self._train(module, packet, own)
                return self._introduce(module, data, own, bool(packet.note.get("wants_counts")))
            except Exception as error:
                _LOG.exception("the node could not answer")
                lines = str(error).strip().splitlines() or [""]
                return Packet({"error": f"{type(error).__name__}: {lines[0]}", "layouts": {}})

        self._serve(answer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Release the client model."""
        self.server.client.release()

    def _introduce(
        self, module: LightningModule, data: FederatedDataModule, own: frozenset[int], with_counts: bool
    ) -> Packet:
        """Return what the server must know about the node: its version, its settings, its model and its clients."""
        described = {}
        for client in sorted(own):
            counts = data.class_counts(client) if with_counts else None
            described[str(client)] = {
                "num_samples": data.num_samples(client),
                "class_counts": None if counts is None else counts.tolist(),
            }
        note = {
            "version": __version__,
            "settings": dict(self._settings),
            "model": entries_of(module),
            "batch_size": data.data.batch_size,
            "classes": _digest(getattr(data.source, "classes", None)),
            "clients": described,
            "layouts": {},
        }
        return Packet(note)

    def _train(self, module: LightningModule, packet: Packet, own: frozenset[int]) -> Packet:
        request = read_request(packet, module.device)
        self._check_own(request.client, own)
        memory = request.memory if request.keeper == "server" else self._memory.load(request.client, request.known)
        self._recall(request.client, memory, module.device)
        server, round = self.server, self._begin_round(module, request)
        (update,) = server.client.train_cohort([request.client], round)
        if isinstance(update, LostClient):
            _LOG.error(
                "client %d failed in round %d: %s",
                *(request.client, round.number + 1, update.reason),
                exc_info=update.error,
            )
            return write_loss(update)
        for transform in server.transforms:
            update = transform(update, round, server.aggregator.layout)
        kept = {**memory, **update.memory}
        remembers = bool(kept)
        if request.keeper == "node" and remembers:
            self._memory.save(request.client, request.version, kept)
        names = list(server.client.logged_names)
        return write_update(update, request, server.aggregator.needs_class_counts, names, remembers)

    def _evaluate(
        self, module: LightningModule, data: FederatedDataModule, packet: Packet, own: frozenset[int]
    ) -> Packet:
        request = read_evaluation(packet, module.device)
        self._check_own(request.client, own)
        memory = request.memory if request.keeper == "server" else self._memory.load(request.client, request.known)
        self._recall(request.client, memory, module.device)
        server = self.server
        self._load(module, request.state)
        entries = {
            **request.personal,
            **server.aggregator.personal_state(request.client),
            **server.client.personal_model(request.client),
        }
        with preserved_generators(), without_announcements():
            metrics = client_metrics(
                TrainerTemplate(module.device).copy(),
                module,
                entries,
                data,
                request.client,
                request.round,
                request.samples,
                server.client.batch_size,
            )
        return Packet({"metrics": metrics, "layouts": {}})

    def _check_own(self, client: int, own: frozenset[int]) -> None:
        if client not in own:
            raise MisconfigurationError(f"client {client} is not on this node, which has {sorted(own)}")

    def _load(self, module: LightningModule, state: StateDict) -> None:
        """Copy a state into the module, which may change its widths."""
        self.server.aggregator.resize(module, state)
        with torch.no_grad():
            for name, value in module.state_dict(keep_vars=True).items():
                if isinstance(value, Tensor):
                    value.copy_(state[name])

    def _recall(self, client: int, memory: Mapping[str, StateDict], device: torch.device) -> None:
        """Make the store hold what is remembered about a client, and nothing else."""
        self._store.load_state_dict(ClientStore().state_dict())
        for writer, values in memory.items():
            self._store.put(writer, client, {name: value.to(device) for name, value in values.items()})

    def _begin_round(self, module: LightningModule, request: Request) -> Round:
        """Put the module and the aggregator into the state that they have in a simulation when a client trains."""
        aggregator = self.server.aggregator
        self._load(module, request.round.start)
        trainable = set(request.trainable)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trainable)

        def personal(client: int) -> StateDict:
            return {**request.personal, **aggregator.personal_state(client)}

        round = replace(request.round, personal=personal, memory=partial(self._store.get, device=module.device))
        aggregator.begin_round(module, round)
        aggregator.round = round
        return round


def _digest(classes: Any) -> str | None:
    """Return a digest of the names of the classes in their order, so that the names need not be sent."""
    if not isinstance(classes, list | tuple):
        return None
    return hashlib.sha256(json.dumps(list(map(str, classes))).encode()).hexdigest()
