"""Nodes that die, come back, do not fit, or answer nonsense."""

import math
import re
from dataclasses import replace

import pytest
import torch

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.aggregation import FedAvg, FedNS
from fl_lightning.attacks import ALittleIsEnough
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient
from fl_lightning.flower import roll
from fl_lightning.flower.packet import Packet
from fl_lightning.flower.post import Undelivered
from fl_lightning.flower.tensors import decode, encode
from tests.flower.loopback import Federation, prints
from tests.toys import Blobs, Net, federate, identical

PARTITION = ClassesPerClient(3, 2)


def make_server(**options) -> FederatedServer:
    options = {"client": LocalTraining(), **options}
    return FederatedServer(FedAvg(), **options)


@pytest.fixture
def federation(tmp_path):
    with Federation(Net, make_server, PARTITION, tmp_path, nodes=3, timeout=0.5) as nodes:
        yield nodes


class Participants(RoundCallback):
    """Keeps who took part, and does something before some rounds."""

    def __init__(self, before=None) -> None:
        self.before = before or {}
        self.took_part: list[list[int]] = []
        self.lost: list[str] = []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.took_part.append([])
        self.before.get(round.number, lambda: None)()

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.took_part[-1].append(update.client)

    def on_client_lost(self, trainer, pl_module, round, lost):
        self.lost.append(f"client {lost.client}: {lost.reason}")


def answering(federation: Federation, number: int, change) -> None:
    """Let a node's answers to training requests pass through a function."""
    answer = federation.post.answers[number]

    def changed(packet: Packet) -> Packet:
        reply = answer(packet)
        return change(reply) if "client" in packet.note else reply

    federation.post.answers[number] = changed


def with_state(reply: Packet, change) -> Packet:
    groups = decode(reply, torch.device("cpu"))
    return encode(reply.note, {**groups, "state": change(groups["state"])})


def test_a_node_that_dies_in_a_round_is_left_out_and_comes_back(federation, caplog):
    watcher = Participants(
        {
            1: lambda: federation.post.answers.pop(1),
            3: lambda: federation.post.answers.update({9: federation._parked[1].answer}),
        }
    )
    with prints(caplog, "client 1 is missing from round 2: its node is not connected"):
        federation.run(rounds=5, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2], [0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]


def test_a_node_that_dies_while_it_trains_is_left_out_of_the_round(federation, caplog):
    post = federation.post
    sent = post.send

    def send(node, kind, packet, seconds):
        number = sent(node, kind, packet, seconds)
        if kind == "train" and packet.note["number"] == 1:
            post.answers.pop(2, None)
        return number

    post.send = send
    watcher = Participants()
    with prints(caplog, "client 2 is missing from round 2: the node is gone"):
        federation.run(rounds=2, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2], [0, 1]]


def restart_in_round(federation: Federation, node: int, number: int) -> None:
    """Start a node again after it has taken its message of a round. It never answers that message."""
    post, sent, taken = federation.post, federation.post.send, []

    def send(to, kind, packet, seconds):
        message = sent(to, kind, packet, seconds)
        if to == node and kind == "train" and packet.note["number"] == number and not taken:
            taken.append(post.waiting.pop(message))
            post.restarts[node] = post.restarts.get(node, 0) + 1
        return message

    post.send = send


def test_a_node_that_is_started_again_in_a_round_does_not_delay_it(tmp_path, caplog):
    with Federation(Net, make_server, PARTITION, tmp_path, nodes=3, timeout=600) as federation:
        restart_in_round(federation, node=1, number=1)
        watcher = Participants()
        with prints(caplog, "client 1 is missing from round 2: its node was stopped or started again"):
            federation.run(rounds=3, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2], [0, 2], [0, 1, 2]]


def test_an_answer_that_a_node_gave_before_it_was_started_again_counts(federation):
    post = federation.post
    collect = post.collect

    def slow(numbers):
        trains = [n for n in numbers if n in post.waiting and "client" in post.waiting[n][1].note]
        if trains and post.waiting[trains[0]][0] == 1 and not post.restarts:
            post.restarts[1] = 1
            return {}
        return collect(numbers)

    post.collect = slow
    watcher = Participants()
    federation.run(rounds=1, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2]]


def test_a_greeting_is_repeated_if_the_node_is_started_again(federation):
    post, sent, lost = federation.post, federation.post.send, []

    def send(node, kind, packet, seconds):
        message = sent(node, kind, packet, seconds)
        if node == 2 and not lost:
            lost.append(post.waiting.pop(message))
            post.restarts[2] = 1
        return message

    post.send = send
    watcher = Participants()
    federation.run(rounds=1, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2]]


def test_a_node_that_was_started_again_with_other_settings_is_refused(federation, caplog):
    def restart() -> None:
        introduced(federation, 2, settings={"client.epochs": 5})
        federation.post.restarts[2] = 1

    watcher = Participants({1: restart})
    with prints(
        caplog, r"client 2 is missing from round 2: node 2 \(client 2\) is refused: its config has client.epochs=5"
    ):
        federation.run(rounds=2, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2], [0, 1]]


def test_a_node_that_has_not_reported_its_clients_yet_is_not_called_absent(federation, caplog):
    collect = federation.post.collect

    def busy(numbers):
        waiting = federation.post.waiting
        starting = {n for n in numbers if n in waiting and waiting[n][0] == 1 and watcher.took_part[1:] == [[]]}
        return collect([number for number in numbers if number not in starting])

    federation.post.collect = busy
    watcher = Participants({1: lambda: federation.post.restarts.update({1: 1})})
    with prints(caplog, "client 1 is missing from round 2: its node is connected, but has not reported its clients"):
        federation.run(rounds=3, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2], [0, 2], [0, 1, 2]]


def test_flower_keeps_answers_for_longer_than_the_server_waits_for_them(federation):
    federation.run(rounds=1)
    assert min(federation.post.lifetimes) > 2 * federation.settings.timeout


def test_a_node_that_does_not_answer_in_time_is_left_out_of_the_round(federation, caplog):
    collect = federation.post.collect

    def collect_others(numbers):
        late = {
            number
            for number, (node, packet) in federation.post.waiting.items()
            if node == 1 and "client" in packet.note
        }
        return collect([number for number in numbers if number not in late])

    federation.post.collect = collect_others
    watcher = Participants()
    with prints(caplog, r"client 1 is missing from round 1: it did not answer within 0.5 s"):
        federation.run(rounds=1, callbacks=[watcher])
    assert watcher.took_part == [[0, 2]]


def test_a_round_that_goes_on_without_a_client_is_exactly_the_round_of_the_others(federation, caplog):
    class Others(ClassesPerClient):
        def assign(self, labels, seed):
            return super().assign(labels, seed)[:2]

    torch.manual_seed(0)
    expected, _ = federate(Net(), partition=Others(3, 2), server=make_server(), rounds=1)
    watcher = Participants({0: lambda: federation.post.answers.pop(2)})
    torch.manual_seed(0)
    with prints(caplog, "client 2"):
        state, _ = federation.run(rounds=1, callbacks=[watcher])
    assert identical(state, dict(expected.state_dict()))


def test_a_transform_that_needs_several_clients_updates_is_refused_by_name(tmp_path):
    def colluding() -> FederatedServer:
        return make_server(transforms=[ALittleIsEnough(0.5)])

    with (
        Federation(Net, colluding, PARTITION, tmp_path) as federation,
        pytest.raises(MisconfigurationError, match="ALittleIsEnough needs the updates of several clients"),
    ):
        federation.run(rounds=1)


def test_a_run_that_waits_in_vain_says_why_nodes_did_not_answer(federation):
    federation.settings = replace(federation.settings, wait=0.5)
    collect = federation.post.collect

    def fail(numbers):
        crashed = [number for number in numbers if federation.post.waiting.get(number, (None,))[0] == 1]
        others = [number for number in numbers if number not in crashed]
        return collect(others) | {number: Undelivered("the app raised an exception") for number in crashed}

    federation.post.collect = fail
    with pytest.raises(MisconfigurationError, match=r"missing \(1\): start .*; node 1 did not answer: the app raised"):
        federation.run(rounds=1)


def test_the_server_says_who_is_missing_while_it_waits(federation, caplog, monkeypatch):
    monkeypatch.setattr(roll, "_REMINDER", 0.1)
    federation.settings = replace(federation.settings, wait=0.5)
    federation.stop(1)
    federation.post.answers[9] = lambda packet: packet  # connected, but never answers
    collect = federation.post.collect
    federation.post.collect = lambda numbers: collect(n for n in numbers if federation.post.waiting[n][0] != 9)
    line = r"1 of 3 clients are missing \(1\); nodes that are connected, but have not reported their clients yet: 1"
    with pytest.raises(MisconfigurationError, match=line), prints(caplog, f"After 0 s, {line}"):
        federation.run(rounds=1)


def test_fewer_than_min_clients_stop_the_run(tmp_path, caplog):
    with Federation(Net, lambda: make_server(min_clients=3), PARTITION, tmp_path, nodes=3) as federation:
        watcher = Participants({1: lambda: federation.post.answers.pop(0)})
        with pytest.raises(Exception, match="min_clients=3"), prints(caplog, "client 0 is missing"):
            federation.run(rounds=2, callbacks=[watcher])


NONSENSE = {
    "NaN": (
        lambda reply: with_state(reply, lambda state: {name: value * math.nan for name, value in state.items()}),
        "is not finite",
    ),
    "a wrong shape": (
        lambda reply: with_state(reply, lambda state: {**state, "layers.0.weight": torch.zeros(2, 2)}),
        r"layers.0.weight has shape \[2, 2\]",
    ),
    "a wrong type": (
        lambda reply: with_state(reply, lambda state: {n: v.to(torch.int64) for n, v in state.items()}),
        "is of type torch.int64",
    ),
    "an unknown entry": (
        lambda reply: with_state(reply, lambda state: {**state, "other": torch.zeros(1)}),
        "has other, which the model does not have",
    ),
    "another client": (lambda reply: replace(reply, note={**reply.note, "client": 0}), "it answered for client 0"),
    "a negative size": (
        lambda reply: replace(reply, note={**reply.note, "num_samples": -5}),
        "num_samples=-5 is not a count",
    ),
    "counts that no tensor can hold": (
        lambda reply: replace(reply, note={**reply.note, "class_counts": [10**30]}),
        "its class counts are not counts",
    ),
    "no samples": (lambda reply: replace(reply, note={**reply.note, "num_samples": 0}), "it has 0 samples"),
    "missing bytes": (
        lambda reply: replace(reply, groups={**reply.groups, "state": reply.groups["state"][:-1]}),
        "state has too few bytes",
    ),
    "another layout": (
        lambda reply: replace(reply, note={**reply.note, "layouts": {"state": [["x", "object", [1]]]}}),
        "do not match their description",
    ),
    "an empty note": (lambda reply: Packet({}), "it does not say 'client'"),
    "an error": (lambda reply: Packet({"error": "disk full"}), "disk full"),
}


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "drop") for name in NONSENSE), ("NaN", "raise"), ("an error", "raise")]
)
def test_nonsense_from_a_node_is_treated_as_client_on_error_says(name, policy, tmp_path):
    change, reason = NONSENSE[name]
    server = {"client": LocalTraining(on_error=policy)}
    with Federation(Net, lambda: make_server(**server), PARTITION, tmp_path, nodes=3) as federation:
        answering(federation, 1, change)
        watcher = Participants()
        if policy == "raise":
            with pytest.raises(Exception, match=f"client 1 failed in round 1: .*{reason}"):
                federation.run(rounds=1, callbacks=[watcher])
        else:
            federation.run(rounds=1, callbacks=[watcher])
            assert watcher.took_part == [[0, 2]]
            assert re.match(f"client 1: .*{reason}", *watcher.lost)


def introduced(federation: Federation, number: int, **changes) -> None:
    """Let a node introduce itself differently."""
    answer = federation.post.answers[number]

    def changed(packet: Packet) -> Packet:
        reply = answer(packet)
        return reply if "client" in packet.note else replace(reply, note={**reply.note, **changes})

    federation.post.answers[number] = changed


REFUSED = {
    "another version": ({"version": "0.1.9"}, "it has fl_lightning 0.1.9, but the server has"),
    "another config": ({"settings": {"client.epochs": 5}}, "its config has client.epochs=5, but the server has client"),
    "another client's number": (
        {"clients": {"0": {"num_samples": 5, "class_counts": None}}},
        "it says it is client 0, which node 0 already is",
    ),
    "a number that does not exist": (
        {"clients": {"7": {"num_samples": 5, "class_counts": None}}},
        "it says it is client 7, but the run has the clients 0 to 2",
    ),
    "no samples": ({"clients": {"2": {"num_samples": 0, "class_counts": None}}}, "client 2 has no samples"),
    "nonsense": ({"clients": {"2": 5}}, "it does not say how many samples client 2 has"),
    "no settings": ({"settings": None}, "it does not say how it is configured"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_does_not_fit_is_refused_by_name(name, federation, caplog):
    changes, reason = REFUSED[name]
    (clients,) = changes.get("clients", "2")
    introduced(federation, 2, **changes)
    federation.settings = replace(federation.settings, wait=0.3)
    with (
        pytest.raises(
            MisconfigurationError,
            match=r"1 of 3 clients are missing \(2\): start their nodes, or set federation.num_clients;"
            rf" node 2 \(client {clients}\) is refused: {reason}",
        ),
        prints(caplog, rf"node 2 \(client {clients}\) is refused: {reason}"),
    ):
        federation.run()
    (told,) = [packet.note["refused"] for packet in federation.post.requests if "refused" in packet.note]
    assert told.startswith(reason)


def test_a_node_takes_the_place_of_one_that_is_gone_even_if_it_was_refused_before(federation, caplog):
    successor = federation.post.answers[1]
    watcher = Participants(
        {1: lambda: federation.post.answers.update({9: successor}), 2: lambda: federation.post.answers.pop(1)}
    )
    with prints(caplog, r"node 9 \(client 1\) is refused: it says it is client 1, which node 1 already is"):
        federation.run(rounds=5, callbacks=[watcher])
    assert watcher.took_part[0] == watcher.took_part[-1] == [0, 1, 2]


def test_a_node_with_another_model_is_refused_by_name_and_the_run_waits_for_the_right_one(federation):
    introduced(federation, 2, model={"layers.0.weight": ["float32", [9, 6]]})
    federation.settings = replace(federation.settings, wait=0.3)
    reason = r"its model differs: layers.0.weight is float32 \[9, 6\] there and float32 \[8, 6\] on the server: install"
    with pytest.raises(MisconfigurationError, match=rf"missing \(2\).*node 2 \(client 2\) is refused: {reason}"):
        federation.run(rounds=1)


def test_the_run_begins_when_a_node_with_another_model_has_been_replaced(federation, monkeypatch):
    right = federation.post.answers[2]
    introduced(federation, 2, model={"layers.0.weight": ["float32", [9, 6]]})
    refuse = roll.Roll._refuse

    def refuse_and_replace(self, *arguments) -> None:
        refuse(self, *arguments)
        federation.post.answers[2] = right
        federation.post.restarts[2] = 1

    monkeypatch.setattr(roll.Roll, "_refuse", refuse_and_replace)
    watcher = Participants()
    federation.run(rounds=1, callbacks=[watcher])
    assert watcher.took_part == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("clients", "shown"),
    [
        (None, ""),
        (5, ""),
        ({}, ""),
        ({"nonsense\n": 1}, ""),
        ({"3": {}}, " (client 3)"),
        ([0, 3, 6, 9, 12, 15], " (clients 0, 3, 6, 9, 12, ...)"),
    ],
)
def test_a_refused_node_is_named_with_its_clients(clients, shown):
    assert roll._in_brackets(clients) == shown


def test_a_node_that_numbers_its_classes_differently_is_refused(tmp_path):
    with Federation(Net, make_server, PARTITION, tmp_path, nodes=0, wait=0.3) as federation:
        for number, classes in enumerate([["cat", "dog"], ["cat", "dog"], ["dog"]]):
            source = Blobs()
            source.classes = classes
            federation.start(number, [number], FederatedDataModule(source, partition=PARTITION))
        with pytest.raises(
            MisconfigurationError, match=r"node 2 \(client 2\) is refused: its classes are not those of"
        ):
            federation.run(rounds=1)
    sent = str([reply.note for reply in federation.post.replies])
    assert "dog" not in sent


class FailingNet(Net):
    """Cannot be trained."""

    def training_step(self, batch, batch_idx):
        raise RuntimeError("the disk is full")


def test_the_traceback_of_a_client_that_fails_is_in_its_nodes_log(tmp_path, caplog):
    client = {"client": LocalTraining(on_error="drop")}
    with (
        Federation(FailingNet, lambda: make_server(**client), PARTITION, tmp_path, nodes=3) as federation,
        pytest.raises(Exception, match="min_clients"),
    ):
        federation.run(rounds=1)
    records = [record for record in caplog.records if record.name == "fl_lightning.flower.node"]
    assert [record.getMessage() for record in records] == [
        f"client {client} failed in round 1: RuntimeError: the disk is full" for client in range(3)
    ]
    assert "in training_step" in records[0].exc_text


@pytest.mark.parametrize(("aggregator", "sent"), [(FedAvg, False), (FedNS, True)])
def test_class_counts_are_sent_only_if_the_aggregator_asks_for_them(aggregator, sent, tmp_path):
    def server() -> FederatedServer:
        return FederatedServer(aggregator(), client=LocalTraining())

    with Federation(Net, server, PARTITION, tmp_path) as federation:
        federation.run(rounds=1)
        introductions = [reply.note["clients"] for reply in federation.post.replies if "clients" in reply.note]
        updates = [reply.note["class_counts"] for reply in federation.post.replies if "class_counts" in reply.note]
    counts = [client["class_counts"] for clients in introductions for client in clients.values()]
    assert len(counts) == len(updates) == 3
    assert all((count is not None) == sent for count in counts + updates)
