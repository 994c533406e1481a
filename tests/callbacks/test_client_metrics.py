"""What clients log in training, in the run's own logs: for EarlyStopping, ModelCheckpoint and the loggers."""

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient, RandomClients
from tests.callbacks.test_server import read_metrics
from tests.runs import scalars
from tests.toys import Net, federate


class Logs(Net):
    """A user's module that logs its training under names of its own."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("train/samples", float(len(batch[1])), on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


class Watch(RoundCallback):
    """Notes what the clients of each round report."""

    def __init__(self):
        self.rounds = {}

    def on_client_end(self, trainer, pl_module, round, update, weight):
        logged = {name: float(value) for name, value in update.logged.items()}
        self.rounds.setdefault(round.number, []).append((weight, update.num_samples, logged))


def train(log_metrics, rounds=2, module=None, **options):
    server = FederatedServer(client=LocalTraining(epochs=2, log_metrics=log_metrics))
    return federate(module or Logs(), server=server, rounds=rounds, **options)


def test_the_run_logs_the_weighted_mean_of_what_the_clients_log(tmp_path):
    watch, logger = Watch(), CSVLogger(tmp_path)
    partition = ClassesPerClient(6, 2, sizes="power_law")
    train(["train_loss", "train/"], partition=partition, callbacks=[watch], logger=logger)
    rows = read_metrics(logger)
    for round_, clients in watch.rounds.items():
        total = sum(weight for weight, *_ in clients)
        for name in ("train_loss", "train/samples"):
            mean = sum(weight * logged[name] for weight, _, logged in clients) / total
            assert rows[round_][name] == pytest.approx(mean, rel=1e-6)
        assert all(logged["train/samples"] == samples for _, samples, logged in clients)


def test_only_what_is_asked_for_is_logged(tmp_path):
    watch, logger = Watch(), CSVLogger(tmp_path)
    train(["train/"], callbacks=[watch], logger=logger)
    assert all(logged.keys() == {"train/samples"} for clients in watch.rounds.values() for *_, logged in clients)
    assert not {"train_loss", "train_loss_of_client"} & read_metrics(logger)[0].keys()


def test_the_loss_over_all_local_steps_keeps_its_name(tmp_path):
    class SameName(Net):
        def training_step(self, batch, batch_idx):
            self.log("train/loss", -1.0)
            return super().training_step(batch, batch_idx)

    logger = CSVLogger(tmp_path)
    train(["train/"], module=SameName(), logger=logger)
    assert read_metrics(logger)[0]["train/loss"] > 0


def test_early_stopping_can_monitor_what_clients_log():
    stop = EarlyStopping("train_loss", stopping_threshold=1e9)
    _, trainer = train(["train_loss"], rounds=5, callbacks=[stop])
    assert trainer.current_epoch == 1


def test_a_checkpoint_can_monitor_what_clients_log(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="train_loss", filename="best")
    _, trainer = train(["train_loss"], callbacks=[best], enable_checkpointing=True, default_root_dir=tmp_path)
    assert best.best_model_score == pytest.approx(float(trainer.callback_metrics["train_loss"]))


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_monitoring_what_only_clients_log_is_explained(kind, tmp_path):
    message = f"{kind.__name__} monitors 'train_loss', which only the clients log: set client.log_metrics to"
    with pytest.raises(MisconfigurationError, match=message):
        train(
            None, callbacks=[kind(monitor="train_loss")], default_root_dir=tmp_path,
            enable_checkpointing=kind is ModelCheckpoint,
        )  # fmt: skip


def test_a_name_that_no_client_logs_is_pointed_out():
    with pytest.warns(UserWarning, match="log_metrics has 'trian', but a client logged train/samples, train_l"):
        train(["trian"])


def test_a_single_name_instead_of_a_list_is_refused():
    with pytest.raises(MisconfigurationError, match=r"set client.log_metrics to \[train_loss\]"):
        LocalTraining(log_metrics="train_loss")


def test_the_command_line_knows_the_clock_and_the_metrics(run, tmp_path):
    code, out, err = run(
        *("fit", "--config", "run.yaml", "--client.clock", "run", "--client.log_metrics", "[train_loss_of]")
    )
    assert code == 0, out + err
    assert "train_loss_of_client" in scalars(tmp_path / "runs" / "run" / "version_0")


def test_two_processes_log_the_same_means_as_one_even_if_one_has_no_clients(tmp_path):
    def means(name, **distributed):
        logger = CSVLogger(tmp_path, name)
        torch.manual_seed(0)
        train(["train"], selection=RandomClients(count=1), logger=logger, **distributed)
        return read_metrics(CSVLogger(tmp_path, name, version=0))

    one, two = means("one", devices=1), means("two", devices=2, strategy="ddp_fork")
    for round_ in (0, 1):
        assert {"train_loss", "train/samples"} <= one[round_].keys()
        assert one[round_] == pytest.approx(two[round_], rel=1e-5, abs=1e-6)


def test_the_run_logs_the_clients_learning_rate_and_not_that_of_the_internal_optimiser(tmp_path):
    logger = CSVLogger(tmp_path)
    federate(Net(lr=0.25), callbacks=[LearningRateMonitor()], logger=logger)
    rows = read_metrics(logger)
    assert [rows[round_]["train/learning_rate"] for round_ in (0, 1)] == pytest.approx([0.25, 0.25])
    assert not any("Install" in name for row in rows.values() for name in row)


def test_the_learning_rate_of_a_server_optimiser_is_shown(tmp_path):
    logger = CSVLogger(tmp_path)
    server = FederatedServer(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    federate(server=server, callbacks=[LearningRateMonitor()], logger=logger)
    assert read_metrics(logger)[0]["lr-Adam"] == pytest.approx(0.01)
