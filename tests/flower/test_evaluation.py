"""Clients' own models are evaluated where they are."""

import pytest

from fl_lightning.callbacks import ClientEvaluation, GlobalTrainingLoss
from fl_lightning.core.errors import MisconfigurationError
from tests.flower.loopback import Federation, prints
from tests.flower.test_equality import PARTITION, case, simulated


def client_metrics(trainer) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("clients/")}


@pytest.mark.parametrize(
    ("name", "samples", "keeper"),
    [
        ("FedBN", "validation", "node"),
        ("FedDNA", "validation", "node"),
        ("Ditto", "own", "node"),
        ("Ditto", "validation", "server"),
    ],
)
def test_nodes_evaluate_their_clients_models_like_the_simulation(name, samples, keeper, tmp_path):
    _, expected = simulated(name, rounds=2, callbacks=[ClientEvaluation(samples=samples)])
    make_module, make_server, selection = case(name)
    with Federation(make_module, make_server, PARTITION, tmp_path, client_memory=keeper) as federation:
        _, trainer = federation.run(rounds=2, selection=selection, callbacks=[ClientEvaluation(samples=samples)])
    assert len(client_metrics(trainer)) == 3
    assert client_metrics(trainer) == client_metrics(expected)


def test_a_node_that_is_gone_is_not_evaluated(tmp_path, caplog):
    make_module, make_server, _ = case("FedBN")
    with Federation(make_module, make_server, PARTITION, tmp_path, nodes=5) as federation:
        answer = federation.post.answers[4]

        def leave(packet):
            if "evaluate" in packet.note:
                return type(packet)({"error": "out of memory"})
            return answer(packet)

        federation.post.answers[4] = leave
        with prints(caplog, "client 4 is not evaluated after round 1: out of memory"):
            _, trainer = federation.run(rounds=1, callbacks=[ClientEvaluation()])
    assert len(client_metrics(trainer)) == 3


def test_a_client_with_other_metrics_is_not_evaluated(tmp_path, caplog):
    make_module, make_server, _ = case("FedBN")
    with Federation(make_module, make_server, PARTITION, tmp_path, nodes=5) as federation:
        answer = federation.post.answers[4]

        def rename(packet):
            reply = answer(packet)
            return type(packet)({"metrics": {"other": 1.0}, "layouts": {}}) if "evaluate" in packet.note else reply

        federation.post.answers[4] = rename
        with prints(caplog, r"client 4 is not evaluated after round 1: it has the metrics \['other'\], but other"):
            _, trainer = federation.run(rounds=1, callbacks=[ClientEvaluation()])
    assert len(client_metrics(trainer)) == 3


def test_a_callback_of_the_server_that_needs_clients_samples_is_refused(tmp_path):
    make_module, make_server, _ = case("FedAvg")
    with (
        Federation(make_module, make_server, PARTITION, tmp_path) as federation,
        pytest.raises(MisconfigurationError, match="samples stay on their nodes"),
    ):
        federation.run(rounds=1, callbacks=[GlobalTrainingLoss()])
