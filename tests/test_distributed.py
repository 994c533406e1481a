"""Two gloo processes give the same result as one, even if a rank has no clients, and after a resume."""

import subprocess
import sys

import pytest
import torch
from pytorch_lightning.loggers import CSVLogger

from fl_lightning import LocalTraining
from fl_lightning.aggregation import Aggregator, FedAvg, Scaffold
from fl_lightning.callbacks import ClientCallback, FederatedServer, RoundCallback
from fl_lightning.core import distributed
from fl_lightning.data import ClassesPerClient, RandomClients
from tests.aggregation.test_fedavg import GatheredMean
from tests.callbacks.test_server import TwoModels, read_metrics
from tests.runs import REPOSITORY, scalars, weights, write_config
from tests.toys import Net, federate


def close(first, second):
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=1e-6, atol=1e-6, msg=lambda text, name=name: name + text
        )


def train(aggregator: Aggregator, count: int, processes: int, **options):
    """Train in forked processes, which need not import torch again."""
    torch.manual_seed(0)
    distributed = {"strategy": "ddp_fork", "devices": processes} if processes > 1 else {"devices": 1}
    federated, trainer = federate(
        Net(batch_norm=True, dropout=0.2, momentum=0.9),
        partition=ClassesPerClient(10, 2, sizes="power_law"),
        selection=RandomClients(count=count),
        server=FederatedServer(aggregator, client=LocalTraining(epochs=2)),
        **distributed,
        **options,
    )
    return dict(federated.state_dict()), trainer


@pytest.mark.parametrize("aggregator", [FedAvg, GatheredMean, TwoModels])
@pytest.mark.parametrize("count", [5, 1])
def test_two_processes_give_the_same_result_as_one(aggregator, count, tmp_path):
    one, _ = train(aggregator(), count, 1, rounds=3, logger=CSVLogger(tmp_path, "one"))
    two, _ = train(aggregator(), count, 2, rounds=3, logger=CSVLogger(tmp_path, "two"))
    close(one, two)
    first, second = (read_metrics(CSVLogger(tmp_path, name, version=0)) for name in ("one", "two"))
    assert first.keys() == second.keys() == {0, 1, 2}
    for round_ in first:
        assert first[round_] == pytest.approx(second[round_], rel=1e-5, abs=1e-6)


def test_two_processes_can_resume_a_run_of_one(tmp_path):
    _, trainer = train(FedAvg(), 5, 1, rounds=2)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    whole, _ = train(FedAvg(), 5, 1, rounds=4)
    resumed, trainer = train(FedAvg(), 5, 2, rounds=4, ckpt_path=tmp_path / "begun.ckpt")
    assert trainer.world_size == 2
    close(whole, resumed)


class SendsItsNumber(ClientCallback):
    def on_upload(self, update):
        update.extras["number"] = torch.tensor(update.client)


class ChecksNumbers(GatheredMean):
    def client_callbacks(self):
        return [SendsItsNumber()]

    def finish_round(self):
        sent = {item.update.client: int(item.update.extras["number"]) for item in self.received}
        assert len(sent) == 5
        assert all(client == number for client, number in sent.items())
        return super().finish_round()


def test_every_rank_receives_the_extras_of_all_clients():
    train(ChecksNumbers(), 5, 2, rounds=1)


class RefusesPickles(RoundCallback):
    """Fails if anything is pickled and sent to another rank in a round."""

    def on_round_start(self, trainer, pl_module, round, clients):
        def refuse(*args, **kwargs):
            raise AssertionError("pickled in a round")

        self.gather, torch.distributed.all_gather_object = torch.distributed.all_gather_object, refuse
        self.pickle, distributed.pickle = distributed.pickle, None

    def on_train_batch_end(self, *args):
        torch.distributed.all_gather_object = self.gather
        distributed.pickle = self.pickle


@pytest.mark.parametrize("aggregator", [FedAvg, GatheredMean, TwoModels, Scaffold])
def test_nothing_is_pickled_in_a_round(aggregator):
    train(aggregator(), 5, 2, rounds=2, callbacks=[RefusesPickles()])


def check_command_line(command, tmp_path, strategy: str) -> None:
    """Check that a run on two processes that is stopped and resumed ends like a run on one process."""
    config = write_config(tmp_path / "run.yaml", trainer={"max_epochs": 4, "default_root_dir": str(tmp_path / "one")})
    two = ["--trainer.strategy", strategy, "--trainer.devices", 2, "--trainer.default_root_dir", tmp_path / "two"]
    command("fit", "--config", config)
    command("fit", "--config", config, *two, "--trainer.max_epochs", 2)
    command("fit", "--config", config, *two, "--ckpt_path", "last")
    one, resumed = (tmp_path / name / "run" / "version_0" for name in ("one", "two"))
    close(weights(one), weights(resumed))
    first, second = scalars(one), scalars(resumed)
    assert first.keys() == second.keys()
    for tag in first:
        assert first[tag] == [(step, pytest.approx(value, rel=1e-5, abs=1e-6)) for step, value in second[tag]], tag


def test_the_command_line_runs_on_two_processes_and_resumes(run, tmp_path):
    def command(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, out + err

    check_command_line(command, tmp_path, "ddp_fork")


@pytest.mark.slow
def test_the_command_line_starts_its_second_process_itself(alone, tmp_path):
    def command(*arguments):
        arguments = [sys.executable, "-m", "fl_lightning.cli", *map(str, arguments)]
        process = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
        assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]

    check_command_line(command, tmp_path, "ddp")
