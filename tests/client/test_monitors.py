"""Schedulers of clients that monitor a metric, such as ReduceLROnPlateau."""

import warnings
from functools import partial

import pytest
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.data import IID
from tests.client.test_clock import EPOCHS, ROUNDS, Save, many_clients, plain_run, seeded
from tests.toys import Blobs, Net, federate, identical


class Plateau(Net):
    """A user's module that lowers its learning rate when a metric no longer improves.

    Args:
        monitor: the metric.
        patience: number of steps of the scheduler without improvement.
        lr: learning rate. A high one makes the loss jump.
        strict: whether Lightning raises an error if the metric is missing.
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 0, lr: float = 0.1, strict: bool = True) -> None:
        super().__init__()
        self.plateau = {"patience": patience, "factor": 0.5, "threshold": 0.2}
        self.lr = lr
        self.config = {"monitor": monitor, "strict": strict}

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=self.lr)
        scheduler = ReduceLROnPlateau(optimizer, **self.plateau)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **self.config}}


class Hears(Plateau):
    """Notes the values that its scheduler gets."""

    values: list

    def lr_scheduler_step(self, scheduler, metric):
        self.values.append(float(metric))
        super().lr_scheduler_step(scheduler, metric)


class Validations(RoundCallback):
    """Notes what the server's validation shows."""

    def __init__(self):
        self.values = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.values.append(float(trainer.callback_metrics["val_loss"]))


class Rates(RoundCallback):
    """Notes the clients' learning rates."""

    def __init__(self):
        self.values = []

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.values.append(update.learning_rate)


def server(clock="round", **options):
    return FederatedServer(client=LocalTraining(clock=clock, **options))


def test_a_client_gets_the_servers_last_value_from_the_second_round_on():
    Hears.values = []
    validations = Validations()
    federate(Hears(), server=server(), partition=IID(1), rounds=3, callbacks=[validations])
    assert Hears.values == validations.values[:2]


def test_the_first_round_is_warned_once_that_there_is_no_value_yet():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federate(Plateau(), server=server(clock="run"), rounds=3)
    messages = [str(warning.message) for warning in caught if "monitors" in str(warning.message)]
    assert messages == [
        "a learning-rate scheduler monitors 'val_loss', which the server measures when a round is over:"
        " the scheduler does nothing before the first validation"
    ]


def test_validation_in_every_second_round_only_is_enough():
    Hears.values = []
    federate(Hears(), server=server(), partition=IID(1), rounds=5, check_val_every_n_epoch=2)
    second_round, third_round, fourth_round = Hears.values  # counted from 0
    assert second_round == third_round != fourth_round


def test_one_client_equals_a_plain_trainer_that_validates_as_often():
    """The learning rate falls in this run, which the last assertion checks."""
    make = partial(Plateau, lr=0.5, strict=False)
    rates = Rates()
    client = LocalTraining(epochs=EPOCHS, clock="run")
    federated, _ = federate(
        seeded(make), server=FederatedServer(client=client), partition=IID(1), rounds=ROUNDS, callbacks=[rates]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plain Trainer says that the first epochs have no value
        plain = plain_run(seeded(make), check_val_every_n_epoch=EPOCHS)
    assert identical(dict(federated.state_dict()), plain)
    assert rates.values[0] == 0.5 > rates.values[-1]


def test_a_resumed_run_remembers_what_its_validations_showed(tmp_path):
    make = partial(Plateau, lr=0.5)
    rates = Rates()
    whole = many_clients(make, callbacks=[Save(tmp_path / "begun.ckpt"), rates])
    assert identical(many_clients(make, ckpt_path=tmp_path / "begun.ckpt"), whole)
    assert rates.values[0] > rates.values[6] > rates.values[-1]  # it fell before and after the checkpoint


@pytest.mark.parametrize("clock", ["round", "run"])
@pytest.mark.parametrize("monitor", ["val_lost", "nonsense"])
def test_a_metric_that_nobody_logs_is_refused_before_a_client_trains_an_epoch(monitor, clock):
    class Counts(Plateau):
        batches = 0

        def training_step(self, batch, batch_idx):
            Counts.batches += 1
            return super().training_step(batch, batch_idx)

    known = "monitor one of train_loss_of_client, val_accuracy, val_loss"
    with pytest.raises(MisconfigurationError, match=f"monitors '{monitor}', which neither .* {known}"):
        federate(Counts(monitor), server=server(clock))
    assert Counts.batches == 1


def test_a_metric_that_nobody_logs_is_refused_after_the_first_validation_if_there_was_none_before():
    with pytest.raises(MisconfigurationError, match="monitors 'nonsense', which neither"):
        federate(Plateau("nonsense"), server=server(), num_sanity_val_steps=0)


def test_a_metric_of_validation_is_refused_if_there_is_no_validation():
    with pytest.raises(MisconfigurationError, match="monitors 'val_loss', which neither"):
        federate(Plateau(), server=server(), limit_val_batches=0)


def test_a_metric_that_clients_log_is_monitored_as_in_any_trainer():
    class LogsAtTheEnd(Hears):
        def on_train_epoch_end(self):
            self.log("mine", 3.0 + self.current_epoch)

    Hears.values = []
    federate(LogsAtTheEnd("mine"), server=server(epochs=2), partition=IID(2), rounds=2)
    assert Hears.values == [3.0, *[3.0, 4.0] * 4]  # the first is from finding out what a client logs


def test_finding_out_what_a_client_logs_leaves_no_trace():
    def train(monitor):
        module = seeded(partial(Plateau, monitor, patience=1000))
        return dict(federate(module, server=server(), rounds=2)[0].state_dict())

    assert identical(train("train_loss_of_client"), train("val_loss"))


def test_over_the_run_a_metric_that_only_clients_know_is_refused():
    with pytest.raises(MisconfigurationError, match=r"clock=run, but .* monitors 'train_loss_of_client', whose past"):
        federate(Plateau("train_loss_of_client"), server=server("run"))


def test_a_scheduler_that_need_not_have_its_metric_trains_without_it():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*monitors")
        _, trainer = federate(Plateau("nonsense", strict=False), server=server())
    assert trainer.current_epoch == 2


def test_local_training_without_a_server_has_no_validation():
    data = FederatedDataModule(Blobs(), partition=IID(2), seed=3)
    data.setup("fit")
    module, training = Plateau(), LocalTraining()
    training.prepare(module, data)
    round_ = Round(number=0, num_rounds=1, seed=3, start=dict(module.state_dict()))
    with pytest.warns(UserWarning, match="does nothing before the first validation"):
        assert next(training.train_cohort([0], round_)).learning_rate == 0.1
