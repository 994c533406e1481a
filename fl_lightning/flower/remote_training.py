"""The server's side of training on other machines."""

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fl_lightning._lightning.names import Callback, LightningModule, rank_zero_info
from fl_lightning.callbacks import FederatedServer
from fl_lightning.client import CohortTraining
from fl_lightning.client.participants import keyed_callbacks
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.federation import FederationSettings
from fl_lightning.core.round import Round
from fl_lightning.core.store import ClientStore
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.data import FederatedDataModule
from fl_lightning.flower.packet import Packet
from fl_lightning.flower.post import Post, Undelivered
from fl_lightning.flower.protocol import Memory, RoundPackets, Version, entries_of, evaluation_request, read_update
from fl_lightning.flower.roll import Roll
from fl_lightning.transforms import UploadTransform

#: the writer under which the server's store keeps the version that a client's memory has reached
_WRITER = "node"
#: how often to look which nodes are connected while waiting for an answer, in seconds
_LOOK_INTERVAL = 1.0


@dataclass(frozen=True)
class _Sent:
    """A message that a node has to answer.

    Args:
        node: the node.
        session: the node's session. If it is started again, it no longer knows the message.
        number: the number under which the answer is collected.
    """

    node: int
    session: str
    number: str


class RemoteTraining(CohortTraining):
    """Trains the clients of a round on the nodes that have them.

    Updates are passed on in the order of the cohort, so the result does not depend on which client is fastest. If a
    node is away, dies or takes too long, the round goes on without its client, whatever ``client.on_error`` says,
    because that is normal in a federation. An answer is checked like any other update: if it cannot be used,
    ``client.on_error`` applies.

    Args:
        post: delivers packets to the nodes.
        roll: knows which node has which client.
        server: the algorithm, how clients train, and the transforms, which nodes apply.
        settings: the settings of the federation.
        same_shapes: whether the nodes' models must have the same shapes as the server's model.

    Attributes:
        sent: bytes that were sent in the current round, as measured.
        received: bytes that were received in the current round, as measured.
    """

    applies_transforms = True

    def __init__(
        self,
        post: Post,
        roll: Roll,
        server: FederatedServer,
        settings: FederationSettings,
        same_shapes: bool = True,
    ) -> None:
        self._post = post
        self._roll = roll
        self._server = server
        self._settings = settings
        self._same_shapes = same_shapes
        # Two runs must never mix up their clients' memories, not even with equal seeds.
        self._run = secrets.randbits(62)
        self._logged_names: set[str] = set()
        self.sent = self.received = 0

    def prepare(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        algorithm_callbacks: Sequence[Callback] = (),
        store: ClientStore | None = None,
        max_batches: int | None = None,
    ) -> None:
        if max_batches is not None:
            raise MisconfigurationError(
                "trainer.fast_dev_run is set, but nodes train whole rounds: leave it out, or simulate"
            )
        local_training, transforms = self._server.client, self._server.transforms
        if local_training.dropout > 0:
            raise MisconfigurationError(
                f"client.dropout={local_training.dropout} is for simulations, because real clients drop out by"
                " themselves: leave it out"
            )
        for transform in transforms:
            if type(transform).apply is not UploadTransform.apply:
                raise MisconfigurationError(
                    f"{type(transform).__name__} needs the updates of several clients, but a node transforms each"
                    " update by itself: remove it from server.transforms, or simulate"
                )
        self._module = module
        self._store = store or ClientStore()
        callbacks = [*local_training.callbacks, *algorithm_callbacks]
        names = [type(transform).__name__ for transform in transforms]
        self._writers = [*(key for key, _ in keyed_callbacks(callbacks)), *names]
        self._roll.check_model(entries_of(module), self._same_shapes)
        if self._roll.missing:
            self._roll.call(self._settings.wait)

    def release(self) -> None:
        """Release the module and the store."""
        self.on_progress = None
        for attribute in ("_module", "_store"):
            self.__dict__.pop(attribute, None)

    def train_cohort(self, clients: Sequence[int], round: Round) -> Iterator[ClientUpdate | LostClient]:
        self.sent = self.received = 0
        self._roll.refresh()
        end = time.monotonic() + self._settings.timeout
        trainable = [name for name, parameter in self._module.named_parameters() if parameter.requires_grad]
        absent = {client: self._roll.absence(client) for client in clients if client not in self._roll.clients}
        messages = self._send("train", clients, partial(self._request, RoundPackets(round, trainable), round))
        for client in clients:
            if client in absent:
                yield _absent(client, round, absent[client])
                continue
            answer = self._wait_for(messages[client], end)
            if isinstance(answer, Undelivered):
                self._roll.lose(messages[client].node, messages[client].session)
                yield _absent(client, round, answer.reason)
            else:
                yield self._read(answer, client, round)

    def evaluate(
        self, clients: Sequence[int], module: LightningModule, round: Round, samples: str
    ) -> dict[int, dict[str, float]]:
        """Evaluate the clients that are present, on their nodes, which hold the clients' own layers and data."""
        end = time.monotonic() + self._settings.timeout
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}

        def request(client: int) -> Packet:
            return evaluation_request(
                client,
                round.number,
                samples,
                state,
                round.personal(client) if round.personal is not None else {},
                self._settings.client_memory,
                self._known_version(client),
                self._memory_of(client),
            )

        messages = self._send("evaluate", clients, request)
        evaluated: dict[int, dict[str, float]] = {}
        for client in [client for client in clients if client in messages]:
            answer = self._wait_for(messages[client], end)
            metrics = answer.note.get("metrics") if isinstance(answer, Packet) else None
            others = next(iter(evaluated.values()), None)
            if not isinstance(metrics, dict) or not all(isinstance(value, float | int) for value in metrics.values()):
                reason = answer.reason if isinstance(answer, Undelivered) else answer.note.get("error", "no metrics")
            elif others is not None and metrics.keys() != others.keys():
                reason = f"it has the metrics {sorted(metrics)}, but other clients have {sorted(others)}"
            else:
                evaluated[client] = {str(name): float(value) for name, value in metrics.items()}
                continue
            rank_zero_info(f"client {client} is not evaluated after round {round.number + 1}: {reason}")
        return evaluated

    @property
    def logged_names(self) -> Collection[str]:
        return self._logged_names

    def _request(self, packets: RoundPackets, round: Round, client: int) -> Packet:
        personal = round.personal(client) if round.personal is not None else {}
        return packets.request(
            client,
            personal,
            self._settings.client_memory,
            self._known_version(client),
            Version(self._run, round.number),
            self._memory_of(client),
        )

    def _memory_of(self, client: int) -> Memory:
        """Return what the server remembers about a client; nothing if the node keeps the memory."""
        if self._settings.client_memory == "node":
            return {}
        kept = {writer: self._store.get(writer, client, self._module.device) for writer in self._writers}
        return {writer: values for writer, values in kept.items() if values is not None}

    def _known_version(self, client: int) -> Version | None:
        """Return the version of its memory that a client has reached, according to the server's checkpoint."""
        values = self._store.get(_WRITER, client, torch.device("cpu"))
        return None if values is None else Version(int(values["run"]), int(values["round"]))

    def _send(self, kind: str, clients: Sequence[int], request: Callable[[int], Packet]) -> dict[int, _Sent]:
        """Send requests to those clients that are present, and return what was sent to each."""
        present = {client: self._roll.clients[client] for client in clients if client in self._roll.clients}
        by_node = sorted(present, key=lambda client: present[client].node)

        def packets() -> Iterator[tuple[int, Packet]]:
            for client in by_node:
                packet = request(client)
                self.sent += packet.num_bytes
                yield present[client].node, packet

        # Answers are read one after another, so one that arrived in time may be read after the timeout.
        numbers = self._post.send_all(kind, packets(), 2 * self._settings.timeout + 60)
        return {
            client: _Sent(present[client].node, present[client].session, number)
            for client, number in zip(by_node, numbers, strict=True)
        }

    def _wait_for(self, sent: _Sent, end: float) -> Packet | Undelivered:
        begin, look = end - self._settings.timeout, time.monotonic()
        while True:
            answer = self._collect(sent)
            now = time.monotonic()
            if answer is None and now >= look:
                look = now + _LOOK_INTERVAL
                self._roll.refresh()
                if self._roll.sessions.get(sent.node) != sent.session:
                    stopped = Undelivered("its node was stopped or started again before it answered")
                    answer = self._collect(sent) or stopped  # it may have answered just before it was stopped
            if answer is not None:
                return answer
            if now > end:
                return Undelivered(f"it did not answer within {self._settings.timeout:g} s (federation.timeout)")
            time.sleep(min(max(0.1, 0.03 * (now - begin)), 1.0))  # adds at most 3 % or 0.1 s

    def _collect(self, sent: _Sent) -> Packet | Undelivered | None:
        return self._post.collect([sent.number]).get(sent.number)

    def _read(self, answer: Packet, client: int, round: Round) -> ClientUpdate | LostClient:
        self.received += answer.num_bytes
        update = read_update(answer, client, round.start_of(client), self._module.device)
        if isinstance(update, ClientUpdate):
            self._logged_names |= {str(name) for name in answer.note.get("logged_names", ())}
            if self._settings.client_memory == "node":
                remembers = answer.note.get("remembers") is True
                tag = {"run": torch.tensor(self._run), "round": torch.tensor(round.number)}
                update.memory = {_WRITER: tag} if remembers else {}
        return update


def _absent(client: int, round: Round, reason: str) -> LostClient:
    rank_zero_info(f"client {client} is missing from round {round.number + 1}: {reason}")
    return LostClient(client, reason, planned=True)
