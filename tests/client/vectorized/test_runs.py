"""Runs whose clients train at once: on two processes, killed and resumed, with layers that thaw, and as a trial."""

import pytest
import torch
from pytorch_lightning import Callback

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.data import IID, ClassesPerClient, Dirichlet, FreshDraw, RandomClients
from tests.client.vectorized.test_equality import Configurable, end, largest_difference, states
from tests.test_every_algorithm import run, run_until_killed
from tests.toys import Net, federate, identical

AT_ONCE = {"execution": "vectorized"}


def momentum_net() -> Configurable:
    """Return a network with every kind of state: BatchNorm's buffers, and an optimiser with momentum."""
    torch.manual_seed(0)
    return Configurable(batch_norm=True)


@pytest.mark.parametrize(("count", "algorithm"), [(3, "FedAvg"), (1, "FedAvg"), (3, "Scaffold")])
def test_two_processes_give_the_same_result_as_one(count, algorithm):
    options = {"selection": RandomClients(count=count), "partition": ClassesPerClient(5, 2), "client": AT_ONCE}
    one, _ = run(algorithm, devices=1, **options)
    two, _ = run(algorithm, strategy="ddp_fork", devices=2, **options)
    assert largest_difference(one, two) < 1e-6


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_rank_without_clients_makes_the_same_choice(dropout):
    """With auto, one rank must not train at once and the other with Trainers. Dropout makes both use Trainers."""

    def train(**flags):
        torch.manual_seed(0)
        server = FederatedServer(client=LocalTraining(execution="auto"))
        module, trainer = federate(Net(dropout=dropout), selection=RandomClients(count=1), server=server, **flags)
        return module.state_dict(), trainer

    one, _ = train(devices=1)
    two, trainer = train(strategy="ddp_fork", devices=2)
    assert trainer.world_size == 2
    assert largest_difference(one, two) < 1e-6


@pytest.mark.parametrize("partition", [IID(5), Dirichlet(5, alpha=0.5)], ids=["equal", "ragged"])
def test_a_run_that_is_killed_before_its_steps_were_recorded_ends_like_an_uninterrupted_one(
    partition, tmp_path, monkeypatch
):
    """The uninterrupted run replays recordings in rounds in which the resumed one has not recorded its steps yet."""
    monkeypatch.setattr("fl_lightning.client.vectorized.step._RUNS_BEFORE_RECORDING", 3)
    options = {"algorithm": "FedAvg", "partition": partition, "selection": RandomClients(count=3), "rounds": 4}
    options |= {"client": AT_ONCE, "epochs": 1}
    whole, trainer = run(module=momentum_net(), **options)
    options["default_root_dir"] = tmp_path
    run_until_killed(1, "client", module=momentum_net(), **options)
    last = tmp_path / "checkpoints" / "last.ckpt"
    run_until_killed(2, "validated", module=momentum_net(), ckpt_path=last, **options)
    resumed, resumed_trainer = run(module=momentum_net(), ckpt_path=last, **options)
    assert identical(whole, resumed)
    assert resumed_trainer.callback_metrics == trainer.callback_metrics


def test_an_algorithm_with_memory_that_is_killed_ends_like_an_uninterrupted_one(tmp_path):
    options = {"algorithm": "Scaffold", "selection": RandomClients(count=3), "rounds": 3, "client": AT_ONCE}
    whole, _ = run(**options)
    run_until_killed(1, "saved", default_root_dir=tmp_path, **options)
    resumed, _ = run(ckpt_path=tmp_path / "checkpoints" / "last.ckpt", default_root_dir=tmp_path, **options)
    assert identical(whole, resumed)


@pytest.mark.parametrize("partition", [IID(3), Dirichlet(3, alpha=0.5)], ids=["equal", "ragged"])
def test_it_does_not_matter_when_a_step_is_recorded(partition, monkeypatch):
    ends = []
    for runs in (0, 2, 10**9):  # at once, soon, never
        monkeypatch.setattr("fl_lightning.client.vectorized.step._RUNS_BEFORE_RECORDING", runs)
        ends.append(end("vectorized", momentum_net, partition))
    assert identical(ends[0], ends[1])
    assert identical(ends[0], ends[2])


def test_partial_participation_with_samples_that_are_redrawn_every_round():
    partition = FreshDraw(8, low=1, high=5)
    assert largest_difference(*states(Net, partition, rounds=3, selection=RandomClients(count=3), epochs=2)) < 1e-6


class Thaws(Callback):
    """Freezes the first layer in round 0, unfreezes it in round 1 and freezes it again in round 2."""

    def on_train_epoch_start(self, trainer, pl_module):
        for parameter in pl_module.module.layers[0].parameters():
            parameter.requires_grad_(trainer.current_epoch == 1)


def test_a_callback_of_the_server_freezes_and_unfreezes_layers_between_rounds():
    ends = []
    for execution in ("trainer", "vectorized"):
        server = FederatedServer(client=LocalTraining(execution=execution))
        torch.manual_seed(0)
        module, _ = federate(Net(momentum=0.9), server=server, callbacks=[Thaws()], rounds=3)
        ends.append(module.state_dict())
    torch.manual_seed(0)
    assert not torch.equal(ends[1]["layers.0.weight"], Net().layers[0].weight)
    assert largest_difference(*ends) < 1e-6


def test_a_trial_run_takes_as_many_steps():
    ends = []
    for execution in ("trainer", "vectorized"):
        server = FederatedServer(client=LocalTraining(epochs=3, execution=execution))
        torch.manual_seed(0)
        module, _ = federate(Net(), partition=IID(2), server=server, fast_dev_run=2)
        ends.append(module.state_dict())
    torch.manual_seed(0)
    assert not torch.equal(ends[1]["layers.0.weight"], Net().layers[0].weight)
    assert largest_difference(*ends) < 1e-6


def test_auto_with_dropout_equals_trainers_bit_for_bit():
    ends = []
    for execution in ("trainer", "auto"):
        server = FederatedServer(client=LocalTraining(execution=execution))
        torch.manual_seed(0)
        module, _ = federate(Net(dropout=0.5), server=server)
        ends.append((dict(module.state_dict()), torch.rand(3)))
    assert identical(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
