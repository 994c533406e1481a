"""While clients train, local training reports how far they have come."""

import pytest
import torch

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.client import training
from tests.toys import Blobs, federate

BATCHES = 4  # of a client: 30 samples in batches of 8


class Listener(RoundCallback):
    """Keeps what the last round of a federation reports."""

    def on_round_start(self, trainer, pl_module, round, clients):
        self.found = []
        self.client.on_progress = self.found.append


def reports(rounds: int = 1, **options) -> list[float]:
    """Return what four clients report in the last round."""
    listener = Listener()
    listener.client = LocalTraining(**options)
    server = FederatedServer(client=listener.client)
    federate(source=Blobs(batch_size=8), rounds=rounds, server=server, callbacks=[listener])
    return listener.found


@pytest.fixture
def every_step(monkeypatch):
    monkeypatch.setattr(training, "_REPORT_INTERVAL", 0.0)


@pytest.mark.parametrize("clock", ["round", "run"])
def test_a_client_reports_the_share_of_the_rounds_batches_in_all_epochs(every_step, clock):
    assert reports(rounds=2, epochs=2, clock=clock) == [batch / (2 * BATCHES) for batch in range(2 * BATCHES)] * 4


def test_accumulated_batches_are_reported_one_by_one(every_step):
    assert reports(accumulate_grad_batches=4) == [0.0, 0.25, 0.5, 0.75] * 4


def test_clients_that_train_at_once_report_together(every_step):
    assert reports(execution="vectorized", chunk=2) == [0.5, 1.0, 1.5, 2.0] * 2


def test_reports_come_at_most_twice_per_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(training, "monotonic", lambda: now[0])
    client = LocalTraining()
    found: list[float] = []
    client.on_progress = found.append
    for step in range(20):
        now[0] = 100 + step / 8  # eight steps per second
        client.report_progress(lambda step=step: step)
    assert found == [0, 4, 8, 12, 16]


def test_a_listener_changes_no_result(every_step):
    def weights(listener) -> torch.Tensor:
        torch.manual_seed(0)
        client = LocalTraining(epochs=2)
        client.on_progress = listener
        federated, _ = federate(rounds=2, server=FederatedServer(client=client))
        return torch.cat([parameter.flatten() for parameter in federated.parameters()])

    assert torch.equal(weights(None), weights(lambda clients: None))
