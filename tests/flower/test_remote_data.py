"""What the server loads itself."""

import pytest

from fl_lightning.callbacks import ClientEvaluation
from fl_lightning.flower.round_lines import RoundLines
from tests.flower import loopback
from tests.flower.loopback import Federation, prints
from tests.flower.test_equality import PARTITION, case, simulated
from tests.toys import Blobs, identical


class NoData(Blobs):
    """The source of a server without data."""

    def prepare_data(self) -> None:
        raise FileNotFoundError("the server has no data")

    def setup(self, stage: str) -> None:
        raise FileNotFoundError("the server has no data")


def test_a_server_that_does_not_validate_needs_no_data(tmp_path, monkeypatch):
    expected, _ = simulated("FedAvg", rounds=2)
    make_module, make_server, selection = case("FedAvg")
    with Federation(make_module, make_server, PARTITION, tmp_path) as federation:
        monkeypatch.setattr(loopback, "Blobs", NoData)
        state, _ = federation.run(rounds=2, selection=selection, limit_val_batches=0)
        assert identical(state, expected)
        with pytest.raises(FileNotFoundError, match="the server has no data"):
            federation.run(rounds=2, selection=selection)


def test_the_means_over_the_clients_are_shown_in_rounds_that_evaluate_them(tmp_path, caplog):
    make_module, make_server, selection = case("FedBN")
    with (
        Federation(make_module, make_server, PARTITION, tmp_path) as federation,
        prints(caplog, r"Round 2/3: 3 of 3 clients, [\d.]+ s, clients/val_\w+_mean [\d.]+$"),
    ):
        callbacks = [ClientEvaluation(every_n_rounds=2), RoundLines()]
        federation.run(rounds=3, selection=selection, limit_val_batches=0, callbacks=callbacks)
    (last,) = [message for message in caplog.messages if message.startswith("Round 3/3")]
    assert "clients/" not in last
