"""What the server asks of a node and what a node answers, as packets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.core.evaluations import Evaluations
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.flower.packet import Packet
from fl_lightning.flower.tensors import WireError, decode, encode, same_bits

#: what callbacks and transforms remember about a client, by writer
Memory = dict[str, StateDict]

_MEMORY = "memory:"
_NUMBERS = ("num_samples", "num_steps", "num_bytes", "learning_rate")


@dataclass(frozen=True)
class Version:
    """Identifies a state of a client's memory: the one after this round of this run."""

    run: int
    round: int


@dataclass(frozen=True)
class Request:
    """A request to train a client.

    Args:
        client: the client's number.
        round: the round, as the server describes it.
        personal: entries that override the global state for this client, as far as the server knows them.
        trainable: names of the parameters that clients train; a callback of the server may freeze layers.
        keeper: who keeps the client's memory, ``node`` or ``server``.
        known: the version of the memory that the client continues from; None if it remembers nothing.
        version: the version of the memory after this round.
        memory: the memory itself, if the server keeps it.
    """

    client: int
    round: Round
    personal: StateDict
    trainable: Sequence[str]
    keeper: str
    known: Version | None
    version: Version
    memory: Memory = field(default_factory=dict)


class RoundPackets:
    """The requests of a round. What all clients receive is encoded once, however many clients there are.

    Args:
        round: the round.
        trainable: names of the parameters that clients train.
    """

    def __init__(self, round: Round, trainable: Sequence[str]) -> None:
        evaluations = round.evaluations
        names = None if evaluations.names is None else sorted(evaluations.names)
        note = {
            "number": round.number,
            "num_rounds": round.num_rounds,
            "seed": round.seed,
            "num_clients": round.num_clients,
            "trainable": list(trainable),
            "evaluations": {"names": names, "rounds": list(evaluations.state_dict().items())},
        }
        self._common = encode(note, {"start": round.start, "broadcast": round.broadcast})

    def request(
        self,
        client: int,
        personal: Mapping[str, Tensor],
        keeper: str,
        known: Version | None,
        version: Version,
        memory: Memory,
    ) -> Packet:
        """Return the packet for one client; see :class:`Request` for the arguments."""
        own = encode({}, {"personal": personal, **{f"{_MEMORY}{key}": values for key, values in memory.items()}})
        note = {
            **self._common.note,
            "client": client,
            "keeper": keeper,
            "known": None if known is None else [known.run, known.round],
            "version": [version.run, version.round],
            "memory": list(memory),
            "layouts": {**self._common.note["layouts"], **own.note["layouts"]},
        }
        return Packet(note, {**self._common.groups, **own.groups})


def evaluation_request(
    client: int,
    round: int,
    samples: str,
    state: Mapping[str, Tensor],
    personal: Mapping[str, Tensor],
    keeper: str,
    known: Version | None,
    memory: Memory,
) -> Packet:
    """Return a request to evaluate a client's own model; see :class:`Evaluation`."""
    note = {
        "evaluate": samples,
        "client": client,
        "number": round,
        "keeper": keeper,
        "known": None if known is None else [known.run, known.round],
        "memory": list(memory),
    }
    kept = {f"{_MEMORY}{key}": values for key, values in memory.items()}
    return encode(note, {"state": state, "personal": personal, **kept})


@dataclass(frozen=True)
class Evaluation:
    """A request to evaluate a client's own model.

    Args:
        client: the client's number.
        round: the number of the round that has just ended.
        samples: ``validation`` or ``own``.
        state: the served model.
        personal: the client's own entries, as far as the server knows them.
        keeper: who keeps the client's memory.
        known: the version of the memory.
        memory: the memory itself, if the server keeps it.
    """

    client: int
    round: int
    samples: Literal["validation", "own"]
    state: StateDict
    personal: StateDict
    keeper: str
    known: Version | None
    memory: Memory


def read_evaluation(packet: Packet, device: torch.device) -> Evaluation:
    """Return the request in a packet, with its tensors on a device."""
    note, groups = packet.note, decode(packet, device)
    return Evaluation(
        client=note["client"],
        round=note["number"],
        samples="own" if note["evaluate"] == "own" else "validation",
        state=groups.get("state", {}),
        personal=groups.get("personal", {}),
        keeper=note["keeper"],
        known=None if note["known"] is None else Version(*note["known"]),
        memory={key: groups.get(f"{_MEMORY}{key}", {}) for key in note["memory"]},
    )


def read_request(packet: Packet, device: torch.device) -> Request:
    """Return the request in a packet, with its tensors on a device."""
    note, groups = packet.note, decode(packet, device)
    evaluations = Evaluations()
    evaluations.load_state_dict({int(round): values for round, values in note["evaluations"]["rounds"]})
    if note["evaluations"]["names"] is not None:
        evaluations.expect(note["evaluations"]["names"])
    round = Round(
        number=note["number"],
        num_rounds=note["num_rounds"],
        seed=note["seed"],
        start=groups.get("start", {}),
        broadcast=groups.get("broadcast", {}),
        evaluations=evaluations,
        num_clients=note["num_clients"],
    )
    return Request(
        client=note["client"],
        round=round,
        personal=groups.get("personal", {}),
        trainable=note["trainable"],
        keeper=note["keeper"],
        known=None if note["known"] is None else Version(*note["known"]),
        version=Version(*note["version"]),
        memory={key: groups.get(f"{_MEMORY}{key}", {}) for key in note["memory"]},
    )


def write_update(
    update: ClientUpdate, request: Request, with_counts: bool, logged_names: Sequence[str], remembers: bool
) -> Packet:
    """Return a client's answer: the entries of the state that it changed, and what it reports.

    Args:
        update: what the client sends; its memory is sent only if the server keeps it.
        request: what it was asked.
        with_counts: whether the aggregator needs to know how many samples of each class the client has.
        logged_names: the metrics that the client's module logs.
        remembers: whether the client remembers anything.
    """
    got = {**request.round.start, **request.personal}
    counts = update.class_counts.tolist() if with_counts and update.class_counts is not None else None
    memory = update.memory if request.keeper == "server" else {}
    note = {
        "client": update.client,
        **{name: getattr(update, name) for name in _NUMBERS},
        "class_counts": counts,
        "unsent": sorted(update.unsent),
        "memory": list(memory),
        "remembers": remembers,
        "logged_names": sorted(logged_names),
    }
    groups: dict[str, Mapping[str, Tensor]] = {
        "state": {name: value for name, value in update.state.items() if not same_bits(value, got.get(name))},
        "extras": update.extras,
        "metrics": {name: torch.as_tensor(value) for name, value in update.metrics.items()},
        "logged": {name: torch.as_tensor(value) for name, value in update.logged.items()},
    }
    return encode(note, groups | {f"{_MEMORY}{key}": values for key, values in memory.items()})


def write_loss(lost: LostClient) -> Packet:
    """Return the answer of a node whose client failed."""
    return Packet({"client": lost.client, "lost": lost.reason, "planned": lost.planned, "layouts": {}})


def read_update(packet: Packet, client: int, got: StateDict, device: torch.device) -> ClientUpdate | LostClient:
    """Return what a client sent. The server checks the update's state when it receives it.

    Args:
        packet: what arrived.
        client: the client that was asked.
        got: the state that it was sent. It does not send back entries that stay the same.
        device: device of the global model.
    """
    note = packet.note
    if "error" in note:
        return LostClient(client, str(note["error"]))
    try:
        if note["client"] != client:
            raise WireError(f"it answered for client {note['client']}")
        if "lost" in note:
            return LostClient(client, str(note["lost"]), planned=note["planned"] is True)
        return _read_fields(note, decode(packet, device), client, got)
    except (WireError, KeyError, TypeError, ValueError) as error:
        missing = f"it does not say {error}" if isinstance(error, KeyError) else str(error)
        return LostClient(client, f"its answer cannot be read: {missing}")


def _read_fields(note: dict[str, Any], groups: dict[str, StateDict], client: int, got: StateDict) -> ClientUpdate:
    for name in ("num_samples", "num_bytes"):
        if not _is_count(note[name]):
            raise WireError(f"{name}={str(note[name])[:40]} is not a count")
    steps, rate, counts = note["num_steps"], note["learning_rate"], note["class_counts"]
    if steps is not None and not _is_count(steps):
        raise WireError(f"num_steps={str(steps)[:40]} is not a count")
    if not (rate is None or isinstance(rate, float | int)):
        raise WireError(f"learning_rate={str(rate)[:40]} is not a number")
    if counts is not None and not all(map(_is_count, counts)):
        raise WireError("its class counts are not counts")
    state = groups.get("state", {})
    update = ClientUpdate(
        client=client,
        state={**{name: value for name, value in got.items() if name not in state}, **state},
        num_samples=note["num_samples"],
        class_counts=None if counts is None else torch.tensor(counts),
        num_steps=steps,
        learning_rate=rate,
        num_bytes=note["num_bytes"],
        unsent=frozenset(map(str, note["unsent"])),
        extras=groups.get("extras", {}),
        metrics=groups.get("metrics", {}),
        logged=groups.get("logged", {}),
        memory={str(key): groups.get(f"{_MEMORY}{key}", {}) for key in note["memory"]},
    )
    return replace(update, state={name: update.state[name] for name in (*got, *state) if name in update.state})


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def entries_of(model: nn.Module) -> dict[str, list[Any]]:
    """Return the type and the shape of each entry of a model's state, to compare the models of server and nodes."""
    return {
        name: [str(value.dtype).removeprefix("torch."), list(value.shape)]
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
