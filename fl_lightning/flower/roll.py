"""The roll call: which node has which client."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_lightning._lightning.names import rank_zero_info
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower.packet import Packet
from fl_lightning.flower.post import Post, Undelivered

#: how many seconds a node may take to answer the roll call; a node imports Lightning and loads its data first
_GREETING_TIMEOUT = 180.0
#: how often the server says which clients it still waits for, in seconds
_REMINDER = 30.0
_PAUSE = 0.2


@dataclass(frozen=True)
class Present:
    """A client that a node has.

    Args:
        node: Flower's id of the node.
        session: the node's session when it reported the client.
        num_samples: how many training samples the client has.
        class_counts: how many of them belong to each class; None unless the aggregator asks for it.
    """

    node: int
    session: str
    num_samples: int
    class_counts: list[int] | None


class Roll:
    """Knows which node has which client, and refuses nodes that do not match the server.

    Args:
        post: delivers packets to the nodes.
        identity: what every node must agree on: the version of the package, and the settings by key.
        num_clients: K, how many clients there are; clients are numbered from 0.
    """

    def __init__(self, post: Post, identity: Mapping[str, Any], num_clients: int) -> None:
        self._post = post
        self._identity = identity
        self._entries: dict[str, list[Any]] | None = None
        self._same_shapes = True
        self.num_clients = num_clients
        self.clients: dict[int, Present] = {}
        #: the sessions of the connected nodes
        self.sessions: dict[int, str] = {}
        #: samples per batch in the nodes' sources
        self.batch_size: int | None = None
        self._greetings: dict[int, str] = {}
        self._models: dict[int, dict[str, list[Any]]] = {}
        #: digests of the names of the classes, by node
        self._classes: dict[int, Any] = {}
        self._refused: dict[int, str] = {}
        #: by node that is refused only for a conflict: the node that has its client already, or whose classes differ
        self._rivals: dict[int, int] = {}
        #: why nodes did not answer when they were last greeted
        self._silent: dict[int, str] = {}
        #: the node that had a client last
        self._last_nodes: dict[int, int] = {}

    def call(self, seconds: float) -> None:
        """Wait until every client is present.

        Args:
            seconds: how long to wait before the run fails with a list of the missing clients.
        """
        rank_zero_info(f"Waiting for {self.num_clients} clients, for up to {seconds:g} s ...")
        start = reminded = time.monotonic()
        while True:
            self.refresh()
            missing = self.missing
            if not missing:
                rank_zero_info(f"All {self.num_clients} clients are present.")
                return
            now = time.monotonic()
            if now > start + seconds:
                reasons = "".join(f"; {reason}" for reason in [*self._refused.values(), *self._silent.values()])
                raise MisconfigurationError(
                    f"after {seconds:g} s, {self._describe(missing)}: start their nodes, or set"
                    f" federation.num_clients{reasons}"
                )
            if now > reminded + _REMINDER:
                reminded = now
                rank_zero_info(f"After {now - start:.0f} s, {self._describe(missing)}")
            time.sleep(_PAUSE)

    @property
    def missing(self) -> list[int]:
        """The clients that no node has, as far as the server has looked."""
        return [client for client in range(self.num_clients) if client not in self.clients]

    def _describe(self, missing: list[int]) -> str:
        """Return which clients are missing, and how many nodes may still report some."""
        numbers = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        text = f"{len(missing)} of {self.num_clients} clients are missing ({numbers})"
        if self._greetings:
            text += f"; nodes that are connected, but have not reported their clients yet: {len(self._greetings)}"
        return text

    def refresh(self) -> None:
        """Greet nodes that are new, read their answers, and forget nodes that are gone.

        A node that was started again is greeted like a new one, because its settings may have changed and what it was
        asked before is lost.
        """
        before, self.sessions = self.sessions, self._post.nodes()
        for node in [node for node, session in before.items() if self.sessions.get(node) != session]:
            self._forget(node)
            for waiting in [waiting for waiting, rival in self._rivals.items() if node in (waiting, rival)]:
                del self._rivals[waiting]
                self._refused.pop(waiting, None)  # the client's number is free again
            for notes in (self._greetings, self._refused, self._silent):
                notes.pop(node, None)
        known = {present.node for present in self.clients.values()} | set(self._greetings) | set(self._refused)
        for node in sorted(set(self.sessions) - known):
            hello = Packet({"wants_counts": bool(self._identity["class_counts"])})
            self._greetings[node] = self._post.send(node, "query", hello, _GREETING_TIMEOUT)
        answers = self._post.collect(self._greetings.values()) if self._greetings else {}
        for node, message in list(self._greetings.items()):
            answer = answers.get(message)
            if answer is not None:
                self._silent.pop(node, None)
            if isinstance(answer, Packet):
                self._admit(node, answer.note)
            elif isinstance(answer, Undelivered):
                self._silent[node] = f"node {node} did not answer: {answer.reason}"
            if answer is not None:
                del self._greetings[node]

    def absence(self, client: int) -> str:
        """Return why a client is absent, in one line."""
        node = self._last_nodes.get(client)
        if node in self._refused:
            return self._refused[node]
        if node in self._greetings:
            return "its node is connected, but has not reported its clients yet"
        if self._greetings:
            return f"its node is not connected (nodes that have not reported their clients yet: {len(self._greetings)})"
        return "its node is not connected"

    def check_model(self, entries: dict[str, list[Any]], same_shapes: bool) -> None:
        """Refuse nodes whose model differs from the server's, now and later.

        Args:
            entries: types and shapes of the server's model, by name.
            same_shapes: whether shapes must agree; an algorithm may change widths during a run.
        """
        self._entries, self._same_shapes = entries, same_shapes
        for node, model in list(self._models.items()):
            difference = self._model_difference(model)
            if difference is not None:
                self._refuse(node, [client for client, has in self.clients.items() if has.node == node], difference)

    def _admit(self, node: int, note: dict[str, Any]) -> None:
        problem = note["error"] if "error" in note else self._difference(note)
        if problem is None:
            problem = self._check_clients(node, note.get("clients"))
        if problem is None:
            problem = self._class_difference(node, note.get("classes"))
        if problem is not None:
            self._refuse(node, note.get("clients"), str(problem))
            return
        self._models[node] = note["model"]
        self._classes[node] = note.get("classes")
        self.batch_size = note.get("batch_size")
        for client, described in note["clients"].items():
            self._last_nodes[int(client)] = node
            self.clients[int(client)] = Present(
                node, self.sessions[node], described["num_samples"], described["class_counts"]
            )

    def _difference(self, note: dict[str, Any]) -> str | None:
        """Return how a node differs from the server, or None."""
        theirs, ours = note.get("version"), self._identity["version"]
        if theirs != ours:
            return f"it has fl_lightning {theirs}, but the server has {ours}: install the same version there"
        settings, own = note.get("settings"), self._identity["settings"]
        if not isinstance(settings, dict) or not isinstance(note.get("model"), dict):
            return "it does not say how it is configured"
        for key in sorted({*settings, *own}):
            if settings.get(key) != own.get(key):
                return (
                    f"its config has {key}={settings.get(key)}, but the server has {key}={own.get(key)}:"
                    " remove it from the node's overlay"
                )
        return None if self._entries is None else self._model_difference(note["model"])

    def _model_difference(self, model: Mapping[str, list[Any]]) -> str | None:
        assert self._entries is not None
        for name in [*self._entries, *model]:
            ours, theirs = self._entries.get(name), model.get(name)
            if ours is None or theirs is None or ours[0] != theirs[0] or (self._same_shapes and ours[1] != theirs[1]):
                described = [" ".join(map(str, entry)) if entry else "missing" for entry in (theirs, ours)]
                return (
                    f"its model differs: {name} is {described[0]} there and {described[1]} on the server:"
                    " install the same code there"
                )
        return None

    def _class_difference(self, node: int, classes: Any) -> str | None:
        """Return how a node's classes differ from those of the nodes that are present, or None.

        A source such as ``ImageFolder`` numbers the classes that it finds. If one is missing, the labels of the others
        would mean something else than on the other nodes.
        """
        for other, theirs in self._classes.items():
            if theirs != classes and None not in (theirs, classes):
                self._rivals[node] = other
                clients = [client for client, has in self.clients.items() if has.node == other]
                return (
                    f"its classes are not those of node {other}{_in_brackets(clients)}: give each node samples of the"
                    " same classes, or use a source that numbers them independently of what it finds"
                )
        return None

    def _check_clients(self, node: int, clients: Any) -> str | None:
        """Return what is wrong with the clients that a node claims to have, or None."""
        if not isinstance(clients, dict) or not clients:
            return "it has no clients: set partition-id in its --node-config"
        for number, described in clients.items():
            client = int(number) if str(number).isdigit() else -1
            if not 0 <= client < self.num_clients:
                return (
                    f"it says it is client {number}, but the run has the clients 0 to {self.num_clients - 1}:"
                    " set partition-id in its --node-config"
                )
            if client in self.clients:
                self._rivals[node] = self.clients[client].node
                return (
                    f"it says it is client {number}, which node {self.clients[client].node} already is:"
                    " give one of them another partition-id"
                )
            counts = described.get("class_counts") if isinstance(described, dict) else None
            if not isinstance(described, dict) or type(described.get("num_samples")) is not int:
                return f"it does not say how many samples client {number} has"
            if described["num_samples"] < 1:
                return f"client {number} has no samples"
            if counts is not None and sum(counts) != described["num_samples"]:
                return f"the class counts of client {number} do not add up to its samples"
        return None

    def _refuse(self, node: int, clients: Any, reason: str) -> None:
        """Refuse a node that claims to have these clients, and say so on both sides."""
        self._forget(node)
        self._refused[node] = f"node {node}{_in_brackets(clients)} is refused: {reason}"
        rank_zero_info(self._refused[node])
        # Whoever runs the node does not see what the server prints.
        self._post.send(node, "query", Packet({"refused": reason}), _GREETING_TIMEOUT)

    def _forget(self, node: int) -> None:
        self.clients = {client: present for client, present in self.clients.items() if present.node != node}
        self._models.pop(node, None)
        self._classes.pop(node, None)

    def lose(self, node: int, session: str) -> None:
        """Forget a node that did not answer in its session. It is greeted again, if it is connected."""
        if self.sessions.get(node) == session:
            self._forget(node)


def _in_brackets(clients: Any) -> str:
    """Return the first clients that a node claims to have, because its id alone does not say which machine it is."""
    numbers = [str(number) for number in clients if str(number).isdigit()] if isinstance(clients, dict | list) else []
    if not numbers:
        return ""
    shown = ", ".join(number[:10] for number in numbers[:5]) + (", ..." if len(numbers) > 5 else "")
    return f" (client {shown})" if len(numbers) == 1 else f" (clients {shown})"
