"""The server: what a round does, what it logs and saves, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.strategies import FSDPStrategy

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.aggregation import Aggregate, FedAvg
from fl_lightning.callbacks import FederatedServer, LastRound, RoundCallback, RoundProgressBar
from fl_lightning.callbacks.run.preparation import check_flags
from fl_lightning.callbacks.run.rich_progress import RichRoundProgressBar
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, RandomClients
from tests.toys import Blobs, Net, federate, identical, quiet_trainer


class Keep(RoundCallback):
    """Records what passes through the server."""

    def __init__(self) -> None:
        self.starts, self.updates, self.cohorts, self.ends = [], [], [], []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.starts.append(round.start)
        self.cohorts.append(list(clients))
        self.updates.append([])

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.updates[-1].append((update, weight))

    def on_round_end(self, trainer, pl_module, round, aggregate):
        self.ends.append({name: value.clone() for name, value in pl_module.state_dict().items()})


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_round_installs_the_weighted_mean_of_its_clients(weighting):
    keep = Keep()
    federated, _ = federate(
        Net(batch_norm=True),
        partition=IID(5, sizes="power_law"),
        selection=RandomClients(count=3),
        server=FederatedServer(FedAvg(), weighting=weighting, client=LocalTraining(epochs=2)),
        callbacks=[keep],
        rounds=1,
    )
    sizes = np.array([update.num_samples if weighting == "samples" else 1.0 for update, _ in keep.updates[0]])
    assert len(set(sizes)) == (3 if weighting == "samples" else 1)
    for name, value in federated.state_dict().items():
        stacked = np.stack([update.state[name].numpy().astype(np.float64) for update, _ in keep.updates[0]])
        mean = np.tensordot(sizes / sizes.sum(), stacked, axes=1)
        expected = stacked.max(axis=0) if name.endswith("tracked") else mean
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_round_starts_where_the_last_one_ended():
    keep = Keep()
    federate(callbacks=[keep], rounds=3)
    assert identical(keep.ends[0], keep.starts[1])
    assert identical(keep.ends[1], keep.starts[2])


def server_step(optimizer, rounds=1):
    keep = Keep()
    torch.manual_seed(0)
    server = FederatedServer(client=LocalTraining(), optimizer=optimizer)
    federate(server=server, callbacks=[keep], rounds=rounds)
    return keep


def test_adam_on_the_server_is_fedadam():
    keep = server_step(lambda params: torch.optim.Adam(params, lr=0.01), rounds=2)
    reference = {name: value.clone().requires_grad_() for name, value in keep.starts[0].items()}
    optimizer = torch.optim.Adam(reference.values(), lr=0.01)
    for round_ in range(2):
        total = sum(update.num_samples for update, _ in keep.updates[round_])
        for name, value in reference.items():
            mean = sum(update.num_samples / total * update.state[name].double() for update, _ in keep.updates[round_])
            value.grad = value.detach() - mean.float()
        optimizer.step()
        for name, value in reference.items():
            torch.testing.assert_close(keep.ends[round_][name], value.detach(), rtol=1e-4, atol=1e-6)


def test_sgd_on_the_server_with_learning_rate_one_half_moves_half_way():
    keep = server_step(lambda params: torch.optim.SGD(params, lr=0.5))
    exact = server_step(None)
    for name, start in keep.starts[0].items():
        half_way = start + 0.5 * (exact.ends[0][name] - start)
        torch.testing.assert_close(keep.ends[0][name], half_way, rtol=1e-5, atol=1e-6)


class TwoModels(FedAvg):
    """Clients continue from twice the average; the average is served."""

    def finish_round(self):
        served = super().finish_round().state
        return Aggregate(state={name: 2 * value for name, value in served.items()}, served_state=served)


def test_with_two_models_clients_and_users_see_different_ones(tmp_path):
    keep = Keep()
    _, trainer = federate(server=FederatedServer(TwoModels()), callbacks=[keep], rounds=2)
    for name, served in keep.ends[0].items():
        assert torch.equal(keep.starts[1][name], 2 * served)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    assert identical(dict(Net.load_from_checkpoint(tmp_path / "two.ckpt").state_dict()), keep.ends[1])

    resumed = Keep()
    server = FederatedServer(TwoModels())
    federate(server=server, callbacks=[resumed], rounds=3, ckpt_path=tmp_path / "two.ckpt")
    for name, served in keep.ends[1].items():
        assert torch.equal(resumed.starts[0][name], 2 * served)


def read_metrics(logger: CSVLogger) -> dict[int, dict[str, float]]:
    import csv

    rows: dict[int, dict[str, float]] = {}
    with open(f"{logger.log_dir}/metrics.csv") as file:
        for row in csv.DictReader(file):
            values = {name: float(value) for name, value in row.items() if value and name != "step"}
            rows.setdefault(int(row["step"]), {}).update(values)
    return rows


def test_the_x_axis_of_every_metric_is_the_round(tmp_path):
    logger = CSVLogger(tmp_path)
    keep = Keep()
    federate(callbacks=[keep], rounds=3, logger=logger, selection=RandomClients(count=2))
    rows = read_metrics(logger)
    assert sorted(rows) == [0, 1, 2]
    size = sum(value.nbytes for value in Net().state_dict().values())
    for round_, row in rows.items():
        updates = [update for update, _ in keep.updates[round_]]
        total = sum(update.num_samples for update in updates)
        loss = sum(update.num_samples / total * float(update.metrics["loss"]) for update in updates)
        assert row["train/loss"] == pytest.approx(loss, rel=1e-5)
        assert row["bytes/up"] == row["bytes/down"] == 2 * size
        assert row["bytes/up_total"] == row["bytes/down_total"] == 2 * size * (round_ + 1)
        assert row["round/clients"] == 2
        assert {"val_loss", "val_accuracy"} <= row.keys()


def test_the_default_progress_bar_and_checkpoint_count_rounds(tmp_path):
    _, trainer = federate(
        rounds=2,
        enable_checkpointing=True,
        enable_progress_bar=True,
        logger=CSVLogger(tmp_path),
        default_root_dir=tmp_path,
    )
    assert isinstance(trainer.progress_bar_callback, RoundProgressBar | RichRoundProgressBar)
    assert [type(callback) for callback in trainer.checkpoint_callbacks] == [LastRound]
    assert torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["epoch"] == 1


def test_the_users_callbacks_stay_and_the_last_round_is_saved_as_well(tmp_path):
    class MyBar(TQDMProgressBar):
        pass

    best = ModelCheckpoint(tmp_path, monitor="val_accuracy", mode="max", filename="best")
    _, trainer = federate(
        rounds=3,
        callbacks=[best, MyBar()],
        enable_checkpointing=True,
        enable_progress_bar=True,
        default_root_dir=tmp_path,
    )
    assert type(trainer.progress_bar_callback) is MyBar
    assert [type(callback) for callback in trainer.checkpoint_callbacks] == [ModelCheckpoint, LastRound]
    last = torch.load(trainer.checkpoint_callbacks[1].best_model_path, weights_only=True)
    assert last["epoch"] == 2


def test_checkpointing_can_be_switched_off(tmp_path):
    _, trainer = federate(rounds=1, default_root_dir=tmp_path)
    assert trainer.checkpoint_callbacks == []
    assert list(tmp_path.iterdir()) == []


def test_the_progress_bar_counts_clients(capsys):
    federate(rounds=2, callbacks=[TQDMProgressBar()], enable_progress_bar=True, selection=RandomClients(count=3))
    printed = capsys.readouterr().out
    assert "Round 2/2" in printed
    assert "3/3 clients" in printed
    assert "Epoch" not in printed


def test_random_numbers_in_validation_depend_only_on_the_round():
    drawn = {}

    class Draws(Callback):
        def on_validation_epoch_start(self, trainer, pl_module):
            if not trainer.sanity_checking:
                drawn.setdefault(trainer.current_epoch, []).append(torch.rand(1).item())

    federate(callbacks=[Draws()], rounds=3)
    federate(callbacks=[Draws()], rounds=3, num_sanity_val_steps=0)
    assert all(first == second for first, second in drawn.values())
    assert len({first for first, _ in drawn.values()}) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gradient_clip_val": 1.0}, "set client.gradient_clip_val instead"),
        ({"accumulate_grad_batches": 2}, "set client.accumulate_grad_batches instead"),
        ({"limit_train_batches": 0.1}, "limit_train_batches=0.1, .*set client.limit_train_batches instead"),
        ({"limit_train_batches": 3}, "limit_train_batches=3, .*set client.limit_train_batches instead"),
        ({"val_check_interval": 0.25}, "val_check_interval=0.25, .*set trainer.check_val_every_n_epoch"),
        ({"val_check_interval": 100}, "val_check_interval=100, .*set trainer.check_val_every_n_epoch"),
    ],
)
def test_flags_that_belong_to_the_clients_are_refused(flags, message):
    with pytest.raises(MisconfigurationError, match=message):
        federate(**flags)


def test_a_strategy_that_shards_the_model_is_refused():
    sharded = FSDPStrategy.__new__(FSDPStrategy)  # its __init__ needs a GPU
    with pytest.raises(MisconfigurationError, match="strategy FSDPStrategy shards"):
        check_flags(SimpleNamespace(strategy=sharded))


def test_sixteen_bit_precision_on_the_server_is_refused():
    server = FederatedServer()
    trainer = quiet_trainer(callbacks=[server], max_epochs=1)
    trainer.strategy.precision_plugin.precision = "16-mixed"
    with pytest.raises(MisconfigurationError, match=r"set client\.precision instead"):
        trainer.fit(FederatedModule(Net()), FederatedDataModule(Blobs(), partition=IID(2)))


def test_an_unknown_weighting_is_refused():
    with pytest.raises(MisconfigurationError, match="weighting='size'"):
        FederatedServer(weighting="size")


def test_an_unwrapped_module_or_data_gets_a_hint():
    with pytest.raises(MisconfigurationError, match=r"FederatedModule\(Net"):
        quiet_trainer(callbacks=[FederatedServer()], max_epochs=1).fit(Net(), Blobs())
    with pytest.raises(MisconfigurationError, match="the data is a Blobs"):
        quiet_trainer(callbacks=[FederatedServer()], max_epochs=1).fit(FederatedModule(Net()), Blobs())


def test_mixed_precision_of_the_server_does_not_reach_the_clients():
    class Exact(Net):
        def training_step(self, batch, batch_idx):
            assert not torch.is_autocast_enabled("cpu")
            assert self(batch[0]).dtype == torch.float32
            return super().training_step(batch, batch_idx)

    _, trainer = federate(Exact(), precision="bf16-mixed", rounds=1)
    assert trainer.current_epoch == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server": FederatedServer(TwoModels())}, "aggregator=FedAvg, but this one has aggregator=TwoModels"),
        ({"partition": IID(3)}, "num_clients=4, but this one has num_clients=3"),
    ],
)
def test_resuming_into_another_federation_is_refused(tmp_path, changes, message):
    _, trainer = federate(rounds=1)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(MisconfigurationError, match=message):
        federate(rounds=2, ckpt_path=tmp_path / "run.ckpt", **changes)


def test_a_server_that_is_reused_remembers_nothing_from_its_first_run():
    first, second = Keep(), Keep()
    server = FederatedServer(TwoModels())
    torch.manual_seed(0)
    federate(server=server, callbacks=[first], rounds=2)
    torch.manual_seed(0)
    federate(server=server, callbacks=[second], rounds=2)
    assert identical(first.starts[0], second.starts[0])
    assert identical(first.ends[1], second.ends[1])


def test_resuming_with_another_server_optimiser_is_refused(tmp_path):
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01)

    _, trainer = federate(rounds=1, server=FederatedServer(optimizer=adam))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(MisconfigurationError, match="server_optimizer=Adam, but this one has server_optimizer=none"):
        federate(rounds=2, ckpt_path=tmp_path / "run.ckpt")


def test_a_checkpoint_is_replaced_atomically(tmp_path, monkeypatch):
    """If the run is killed while it writes a checkpoint, the last one stays intact."""
    federate(rounds=1, enable_checkpointing=True, default_root_dir=tmp_path)
    last = tmp_path / "checkpoints" / "last.ckpt"
    before = last.read_bytes()

    def killed(*_):
        raise KeyError("killed")

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyError, match="killed"):
        federate(rounds=2, enable_checkpointing=True, default_root_dir=tmp_path, ckpt_path=last)
    assert last.read_bytes() == before


def test_another_runs_checkpoint_is_not_overwritten(tmp_path):
    federate(rounds=1, enable_checkpointing=True, default_root_dir=tmp_path)
    with pytest.raises(MisconfigurationError, match="belongs to another run: continue it with ckpt_path"):
        federate(rounds=1, enable_checkpointing=True, default_root_dir=tmp_path)


def test_a_users_checkpoint_callback_that_looks_like_the_default_is_kept(tmp_path):
    every_second = ModelCheckpoint(every_n_epochs=2, save_top_k=-1)
    _, trainer = federate(rounds=4, callbacks=[every_second], enable_checkpointing=True, default_root_dir=tmp_path)
    assert len(list((tmp_path / "checkpoints").glob("epoch=*.ckpt"))) == 2
    assert [type(callback) for callback in trainer.checkpoint_callbacks] == [ModelCheckpoint, LastRound]


def test_the_modules_checkpoint_callback_comes_before_last_round(tmp_path):
    class Configured(Net):
        def configure_callbacks(self):
            return [ModelCheckpoint(tmp_path, monitor="val_loss", filename="best")]

    _, trainer = federate(Configured(), rounds=3, enable_checkpointing=True, default_root_dir=tmp_path)
    assert [type(callback) for callback in trainer.checkpoint_callbacks] == [ModelCheckpoint, LastRound]
    saved = torch.load(trainer.checkpoint_callbacks[1].best_model_path, weights_only=True)
    assert saved["callbacks"][trainer.checkpoint_callbacks[0].state_key]["best_model_path"] == str(
        tmp_path / "best.ckpt"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"precision": "64-true"}, "precision=64-true"), ({"overfit_batches": 1}, "overfit_batches=1")],
)
def test_further_flags_that_belong_to_the_clients_are_refused(flags, message):
    with pytest.raises(MisconfigurationError, match=message):
        federate(**flags)
