"""The examples in docs/extending.md run and do what they say."""

import numpy as np
import pytest
import torch

from docs.examples.log_normal_sizes import LogNormalSizes
from docs.examples.loss_spread import LossSpread
from docs.examples.majority_vote import MajorityVote
from docs.examples.personal_head import PersonalHead
from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg
from fl_lightning.callbacks import ClientEvaluation, FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import AllClients
from tests.runs import REPOSITORY
from tests.toys import Net, federate, random_updates

EXAMPLES = REPOSITORY / "docs" / "examples"


def test_the_aggregator_counts_one_vote_per_client(generator):
    model = Net()
    updates = random_updates(model, 7, generator)
    result = MajorityVote(step=0.3).aggregate(model, updates)
    for name, start in model.named_parameters():
        up = sum((update.state[name] > start).numpy().astype(int) for update in updates)
        expected = start.detach().numpy() + np.where(up >= 4, 0.3, -0.3)
        np.testing.assert_allclose(result.state[name].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_the_aggregator_runs_in_a_federation():
    _, trainer = federate(server=FederatedServer(MajorityVote()))
    assert 0 < trainer.callback_metrics["majority_vote/margin"] < 1


def test_the_aggregator_refuses_a_step_that_moves_nothing():
    with pytest.raises(MisconfigurationError, match="set step of MajorityVote"):
        MajorityVote(step=0.0)


def test_the_partition_gives_every_sample_one_owner():
    clients = LogNormalSizes(num_clients=10, sigma=2.0).assign(np.zeros(100, dtype=int), seed=3)
    assert np.array_equal(np.sort(np.concatenate(clients)), np.arange(100))
    assert len(clients) == 10


def test_the_partition_runs_in_a_federation():
    federate(partition=LogNormalSizes(num_clients=4))


def test_the_client_callback_restores_the_clients_head():
    starts: dict[tuple[int, int], torch.Tensor] = {}

    class Watched(PersonalHead):
        def on_fit_start(self, trainer, pl_module):
            super().on_fit_start(trainer, pl_module)
            starts[self.round.number, self.client] = pl_module.layers[3].weight.detach().clone()

        def on_upload(self, update):
            super().on_upload(update)
            ends[self.round.number, self.client] = update.state["layers.3.weight"].clone()

    ends: dict[tuple[int, int], torch.Tensor] = {}
    client = LocalTraining(callbacks=[Watched("layers.3.")])
    federate(selection=AllClients(), server=FederatedServer(FedAvg(), client=client))
    assert all(torch.equal(starts[1, k], ends[0, k]) for k in range(4))
    assert not torch.equal(starts[1, 0], starts[1, 1])


def test_client_evaluation_uses_the_heads_of_the_client_callback():
    client = LocalTraining(callbacks=[PersonalHead("layers.3.")])
    _, trainer = federate(server=FederatedServer(client=client), callbacks=[ClientEvaluation()])
    assert trainer.callback_metrics["clients/val_loss_std"] > 0


def test_the_diagnostic_logs_the_spread_of_the_losses():
    _, trainer = federate(callbacks=[LossSpread()])
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged["losses/smallest"] < logged["losses/mean"] < logged["losses/largest"]
    assert logged["losses/mean"] == pytest.approx(logged["train/loss"], rel=1e-6)  # all clients have the same size


def test_the_diagnostic_takes_about_fifteen_lines():
    assert len((EXAMPLES / "loss_spread.py").read_text().splitlines()) <= 20


def test_all_examples_run_together_from_yaml(run, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    short = ["--trainer.max_epochs", 2, "--client.epochs", 1, "--trainer.enable_progress_bar", "false"]
    demo, overlay = REPOSITORY / "configs" / "demo.yaml", EXAMPLES / "extended.yaml"
    code, out, err = run("fit", "--config", demo, "--config", overlay, *short)
    assert code == 0, err
    assert "MajorityVote" in out
