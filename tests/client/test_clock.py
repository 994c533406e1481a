"""A client's epoch, step and schedulers begin again in every round, or go on over the run."""

import pytest
import torch
from pytorch_lightning import Callback, seed_everything
from torch.optim import SGD, lr_scheduler

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.callbacks import CosineAnnealing, FederatedServer, RoundCallback
from fl_lightning.core.round import Round
from fl_lightning.data import IID, ClassesPerClient, RandomClients
from tests.toys import Blobs, Net, federate, identical, quiet_trainer

ROUNDS, EPOCHS = 4, 3


class Scheduled(Net):
    """A user's module whose learning rate follows a schedule.

    Args:
        schedule: makes the scheduler from the optimiser and the module.
        interval: ``epoch`` or ``step``.
        frequency: number of intervals between two steps of the scheduler.
    """

    def __init__(self, schedule=None, interval: str = "epoch", frequency: int = 1, **options) -> None:
        super().__init__()
        self.schedule = schedule
        self.options = {"interval": interval, "frequency": frequency, **options}

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.2)
        scheduler = self.schedule(optimizer, self)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **self.options}}


class SameBatches(Blobs):
    """Gives a plain Trainer the batches of the only client: EPOCHS per round, round after round."""

    def __init__(self, seed: int = 5) -> None:
        super().__init__()
        self.federated = FederatedDataModule(Blobs(), partition=IID(1), seed=seed)
        self.federated.setup("fit")
        self.epoch = 0

    def train_dataloader(self):
        return self

    @property
    def sampler(self):
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        round_, epoch = divmod(self.epoch, EPOCHS)
        loader = self.federated.client_loader(0, round_)
        loader.batch_sampler.set_epoch(epoch)
        yield from loader

    def __len__(self) -> int:
        return len(self.federated.client_loader(0, 0))


def plain_run(module, **flags):
    """Train with one plain Trainer, for as many epochs as the federation trains in all rounds."""
    quiet_trainer(max_epochs=ROUNDS * EPOCHS, num_sanity_val_steps=0, **flags).fit(module, datamodule=SameBatches())
    return dict(module.state_dict())


def federated_run(module, clock="run", rounds=ROUNDS, **options):
    client_options = {name: options.pop(name) for name in ("accumulate_grad_batches", "callbacks") if name in options}
    options = {"partition": IID(1), **options}
    server = FederatedServer(client=LocalTraining(epochs=EPOCHS, clock=clock, **client_options))
    federated, trainer = federate(module, server=server, rounds=rounds, **options)
    return dict(federated.state_dict()), trainer


def seeded(make):
    seed_everything(5, verbose=False)
    return make()


class Milestones(lr_scheduler.LRScheduler):
    """A scheduler of the user's own whose rate depends on its last rate, as the chainable ones of torch do."""

    def get_lr(self):
        return [group["lr"] * (0.7 if self.last_epoch % 4 == 3 else 1.0) for group in self.optimizer.param_groups]


SCHEDULES = {
    "StepLR": lambda: Scheduled(lambda optimizer, _: lr_scheduler.StepLR(optimizer, 2, gamma=0.7)),
    "StepLR of every second epoch": lambda: Scheduled(
        lambda optimizer, _: lr_scheduler.StepLR(optimizer, 1, gamma=0.7), frequency=2
    ),
    "ExponentialLR of every fourth step": lambda: Scheduled(
        lambda optimizer, _: lr_scheduler.ExponentialLR(optimizer, 0.97), "step", frequency=4
    ),
    "CosineAnnealingLR": lambda: Scheduled(
        lambda optimizer, module: lr_scheduler.CosineAnnealingLR(optimizer, module.trainer.max_epochs)
    ),
    "CosineAnnealingLR by step": lambda: Scheduled(
        lambda optimizer, module: lr_scheduler.CosineAnnealingLR(optimizer, module.trainer.estimated_stepping_batches),
        "step",
    ),
    "OneCycleLR": lambda: Scheduled(
        lambda optimizer, module: lr_scheduler.OneCycleLR(
            optimizer, 0.4, total_steps=module.trainer.estimated_stepping_batches, cycle_momentum=False
        ),
        "step",
    ),
    "LambdaLR": lambda: Scheduled(lambda optimizer, _: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))),
    "LambdaLR by step": lambda: Scheduled(
        lambda optimizer, _: lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50)), "step"
    ),
    "SequentialLR": lambda: Scheduled(
        lambda optimizer, _: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.8)],
            milestones=[4],
        )
    ),
    "a scheduler of the user's own": lambda: Scheduled(lambda optimizer, _: Milestones(optimizer)),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", SCHEDULES)
def test_one_client_with_a_scheduler_equals_one_plain_trainer(name):
    federated, _ = federated_run(seeded(SCHEDULES[name]))
    assert identical(federated, plain_run(seeded(SCHEDULES[name])))


def test_accumulated_gradients_count_as_in_one_plain_trainer():
    federated, _ = federated_run(seeded(SCHEDULES["OneCycleLR"]), accumulate_grad_batches=4)
    assert identical(federated, plain_run(seeded(SCHEDULES["OneCycleLR"]), accumulate_grad_batches=4))


def test_schedulers_begin_again_in_every_round_by_default():
    federated, _ = federated_run(seeded(SCHEDULES["StepLR"]), clock="round")
    assert not identical(federated, plain_run(seeded(SCHEDULES["StepLR"])))


class Annealed(Net):
    """Reads every clock of its Trainer, and takes the step of a scheduler itself, as users of timm do."""

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.2)
        return [optimizer], [{"scheduler": lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        for group in scheduler.optimizer.param_groups:
            group["lr"] *= 1 - 0.5 * self.global_step / self.trainer.estimated_stepping_batches

    def training_step(self, batch, batch_idx):
        done = (self.current_epoch + 1) / self.trainer.max_epochs
        return super().training_step(batch, batch_idx) * (done + 0.001 * self.global_step)


def test_a_module_that_reads_the_time_equals_one_plain_trainer():
    federated, _ = federated_run(seeded(Annealed))
    assert identical(federated, plain_run(seeded(Annealed)))


class Diary(Net):
    """Notes what its Trainer says about the time."""

    entries: list

    def training_step(self, batch, batch_idx):
        trainer = self.trainer
        self.entries.append(
            (self.current_epoch, self.global_step, trainer.max_epochs, trainer.estimated_stepping_batches)
        )
        return super().training_step(batch, batch_idx)


def test_epoch_and_step_go_on_over_the_run():
    Diary.entries = []
    federated_run(Diary(), partition=IID(1))
    batches = len(SameBatches())
    total = ROUNDS * EPOCHS
    expected = [(step // batches, step, total, total * batches) for step in range(total * batches)]
    assert Diary.entries == expected


def test_epoch_and_step_begin_again_in_every_round_by_default():
    Diary.entries = []
    with pytest.warns(UserWarning, match="Diary reads current_epoch and reads global_step"):
        federated_run(Diary(), clock="round", rounds=2)
    batches = len(SameBatches())
    once = [(step // batches, step, EPOCHS, EPOCHS * batches) for step in range(EPOCHS * batches)]
    assert Diary.entries == [*once, *once]


def test_a_client_that_was_seldom_selected_stands_where_the_run_stands():
    Diary.entries = []
    federated_run(Diary(), partition=IID(4), selection=RandomClients(count=1))
    assert sorted({epoch for epoch, *_ in Diary.entries}) == list(range(ROUNDS * EPOCHS))


def test_a_run_without_a_limit_has_no_last_epoch():
    Diary.entries = []
    server = FederatedServer(client=LocalTraining(clock="run"))
    federate(Diary(), server=server, partition=IID(1), rounds=-1, max_steps=2)
    assert {(limit, steps) for _, _, limit, steps in Diary.entries} == {(-1, float("inf"))}
    assert {epoch for epoch, *_ in Diary.entries} == {0, 1}


class Updates(RoundCallback):
    """Keeps what clients report about their training."""

    def __init__(self):
        self.reports = []

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.reports.append((update.num_steps, update.learning_rate))


def test_an_update_reports_the_steps_of_its_round_and_the_rate_of_its_last_step():
    updates = Updates()
    server = FederatedServer(client=LocalTraining(epochs=2, clock="run"))
    federate(SCHEDULES["StepLR"](), server=server, partition=IID(1), rounds=3, callbacks=[updates])
    steps = 2 * len(SameBatches())
    assert updates.reports == [(steps, pytest.approx(0.2 * 0.7**round_)) for round_ in range(3)]


@pytest.mark.parametrize("clock", ["round", "run"])
def test_the_order_of_batches_does_not_depend_on_the_clock(clock):
    seen = []

    class Watch(Net):
        def training_step(self, batch, batch_idx):
            seen.append(batch[0].clone())
            return super().training_step(batch, batch_idx)

    federated_run(Watch(), clock=clock, rounds=2)
    data = SameBatches(seed=0)
    expected = []
    for epoch in range(2 * EPOCHS):
        data.set_epoch(epoch)
        expected += [batch[0] for batch in data]
    assert all(torch.equal(first, second) for first, second in zip(seen, expected, strict=True))


def many_clients(make=SCHEDULES["OneCycleLR"], **options):
    options = {"partition": ClassesPerClient(6, 2, sizes="power_law"), "selection": RandomClients(count=3), **options}
    server = FederatedServer(client=LocalTraining(epochs=EPOCHS, clock="run"))
    federated, _ = federate(seeded(make), server=server, rounds=ROUNDS, **options)
    return dict(federated.state_dict())


class Save(Callback):
    """Saves a checkpoint at the end of the second round."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


def test_a_resumed_run_goes_on_like_an_uninterrupted_one(tmp_path):
    whole = many_clients(callbacks=[Save(tmp_path / "begun.ckpt")])
    assert identical(many_clients(ckpt_path=tmp_path / "begun.ckpt"), whole)


def test_two_processes_keep_the_same_time_as_one():
    one = many_clients(devices=1)
    two = many_clients(devices=2, strategy="ddp_fork")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-6, atol=1e-6)


def test_the_order_of_clients_changes_no_rate():
    """Schedulers go on from where an earlier client left them, which must be as good as stepping from the start."""
    data = FederatedDataModule(Blobs(), partition=ClassesPerClient(6, 2, sizes="power_law"), seed=3)
    data.setup("fit")
    module = SCHEDULES["OneCycleLR"]()
    start = {name: value.clone() for name, value in module.state_dict().items()}

    def states(clients, numbers):
        training = LocalTraining(epochs=2, clock="run")
        training.prepare(module, data)
        rounds = [Round(number=number, num_rounds=9, seed=3, start=start) for number in numbers]
        return [{update.client: update.state for update in training.train_cohort(clients, r)} for r in rounds][-1]

    after_others, alone = states([0, 1, 2, 3, 4, 5], [2, 4, 7]), states([5, 3, 0, 1, 4, 2], [7])
    assert all(identical(after_others[client], alone[client]) for client in range(6))


def test_cosine_annealing_over_the_run_does_not_depend_on_the_clock():
    by_round, _ = federated_run(seeded(Net), clock="round", callbacks=[CosineAnnealing()])
    over_run, _ = federated_run(seeded(Net), clock="run", callbacks=[CosineAnnealing()])
    assert identical(by_round, over_run)
