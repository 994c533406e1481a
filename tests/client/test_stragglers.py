"""Clients that drop out of a round, and clients that train for different numbers of epochs."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg, FedNova, Scaffold
from fl_lightning.callbacks import CosineAnnealing, FederatedServer, RoundCallback
from fl_lightning.client.stragglers import draw_dropouts, draw_epochs
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError
from fl_lightning.core.update import LostClient
from fl_lightning.data import IID, Dirichlet, RandomClients
from tests.client.test_training import prepared
from tests.toys import Net, federate, identical

REFUSED = {
    "epochs=0, but a client must train: set client.epochs to 1 or more": {"epochs": 0},
    "epochs=0, but a client must train": {"epochs": [0, 3]},
    r"epochs=\[5, 1\]: set client.epochs to \[1, 5\]": {"epochs": [5, 1]},
    r"epochs=\[1\]: set client.epochs to a number, or to \[smallest, largest\]": {"epochs": [1]},
    r"epochs=\[1, 2, 3\]: set client.epochs to a number": {"epochs": [1, 2, 3]},
    r"epochs=\[1, 2.5\]: set client.epochs to a number": {"epochs": [1, 2.5]},
    r"epochs=\[1, 5\] with clock=run, .*: set client.epochs to a number, or client.clock to round": {
        "epochs": [1, 5],
        "clock": "run",
    },
    "dropout=1.0, but it is the probability that a client drops out: set client.dropout in": {"dropout": 1.0},
    "dropout=-0.1": {"dropout": -0.1},
    "dropout=nan": {"dropout": float("nan")},
    "timeout=0, but it is a time in seconds: set client.timeout above 0": {"timeout": 0},
    "timeout=nan": {"timeout": float("nan")},
    "on_error='ignore': set client.on_error to raise or drop": {"on_error": "ignore"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_out_of_bounds_are_refused(message):
    with pytest.raises(MisconfigurationError, match=message):
        LocalTraining(**REFUSED[message])


class Log(RoundCallback):
    """Records who took part, with how many steps, and who was lost."""

    def __init__(self) -> None:
        self.steps: dict[tuple[int, int], int] = {}
        self.lost: list[tuple[int, int, str]] = []
        self.dropped: list[float] = []

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.steps[round.number, update.client] = update.num_steps

    def on_client_lost(self, trainer, pl_module, round, lost):
        self.lost.append((round.number, lost.client, lost.reason))

    def on_train_batch_end(self, trainer, *_):
        self.dropped.append(float(trainer.callback_metrics.get("round/dropped", 0)))


def train(rounds=3, aggregator=None, callbacks=(), server=None, module=None, **options):
    torch.manual_seed(0)
    flags = {name: options.pop(name) for name in ("partition", "selection", "devices", "strategy") if name in options}
    flags.setdefault("partition", IID(6))
    log = Log()
    server = FederatedServer(
        aggregator or FedAvg(), client=LocalTraining(callbacks=list(callbacks), **options), **(server or {})
    )
    federated, trainer = federate(
        module or Net(), server=server, rounds=rounds, callbacks=[log], limit_val_batches=0, **flags
    )
    return dict(federated.state_dict()), log, trainer


@given(seed=st.integers(0, 2**32), round_=st.integers(0, 1000), size=st.integers(1, 8), dropout=st.floats(0, 0.999))
@settings(max_examples=30, deadline=None)
def test_somebody_stays_and_the_other_clients_do_not_matter(seed, round_, size, dropout):
    lost = draw_dropouts(dropout, seed, round_, range(size))
    assert lost < set(range(size))
    more = draw_dropouts(dropout, seed, round_, range(size + 1))
    if len(lost) < size - 1:  # otherwise one of them may stay only because all others are lost
        assert more - {size} >= lost


def test_the_share_of_clients_that_drop_out_is_the_probability():
    lost = sum(len(draw_dropouts(0.3, 0, round_, range(20))) for round_ in range(100))
    assert lost / 2000 == pytest.approx(0.3, abs=0.03)  # 3 standard deviations


def test_the_numbers_of_epochs_are_uniform_and_include_both_ends():
    counts = Counter(draw_epochs([2, 5], 0, round_, client) for round_ in range(40) for client in range(50))
    assert sorted(counts) == [2, 3, 4, 5]
    assert all(count == pytest.approx(500, abs=60) for count in counts.values())  # 3 standard deviations


@pytest.mark.parametrize(("execution", "on_error"), [("trainer", "raise"), ("vectorized", "drop")])
def test_dropping_out_is_being_lost_without_training_and_never_stops_the_run(execution, on_error):
    _, log, trainer = train(dropout=0.4, execution=execution, on_error=on_error, rounds=4)
    expected = [draw_dropouts(0.4, 0, round_, range(6)) for round_ in range(4)]
    assert log.lost == [(round_, client, "dropout") for round_, lost in enumerate(expected) for client in sorted(lost)]
    assert log.dropped == [len(lost) for lost in expected]
    assert 0 < len(log.lost) < 24
    assert set(log.steps) == {(r, c) for r in range(4) for c in range(6) if c not in expected[r]}
    assert trainer.callback_metrics["round/clients"] + log.dropped[-1] == 6


def test_a_run_whose_clients_almost_always_drop_out_goes_on():
    _, log, _ = train(dropout=0.999, rounds=5)
    assert log.dropped == [5.0] * 5


def test_too_few_clients_that_are_left_stop_the_run():
    message = (
        r"^round 1 has lost 5 of its 6 clients, but server.min_clients=2: lower server.min_clients, or select more"
        " clients per round$"
    )
    with pytest.raises(RoundFailedError, match=message):
        train(dropout=0.999, server={"min_clients": 2})


@pytest.mark.parametrize(
    ("min_clients", "message"),
    [
        (0, "min_clients=0: set server.min_clients to 1 or more"),
        (4, "min_clients=4, but a round has 3 clients: set server.min_clients to 3 or less, or select more clients"),
    ],
)
def test_a_number_of_clients_that_no_round_can_have_is_refused(min_clients, message):
    with pytest.raises(MisconfigurationError, match=message):
        train(selection=RandomClients(count=3), server={"min_clients": min_clients})


@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_a_client_takes_the_steps_of_the_epochs_that_it_drew(execution):
    _, log, _ = train(epochs=[1, 4], execution=execution, partition=Dirichlet(6, alpha=1.0))
    assert len(set(log.steps.values())) > 3
    _, one, _ = train(epochs=1, partition=Dirichlet(6, alpha=1.0))
    for (round_, client), steps in log.steps.items():
        assert steps == one.steps[0, client] * draw_epochs([1, 4], 0, round_, client)


class Annealed(Net):
    """Has a scheduler that steps after every epoch."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": CosineAnnealingLR(optimizer, T_max=5)}


OPTIONS = {
    "FedNova": {"aggregator": FedNova},
    "SCAFFOLD": {"aggregator": Scaffold},
    "cosine over the run": {"callbacks": [CosineAnnealing()]},
    "cosine over the round": {"callbacks": [CosineAnnealing(horizon="round")]},
    "a scheduler": {"module": Annealed},
    "momentum": {"module": lambda: Net(momentum=0.9, batch_norm=True)},
}


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(name, marks=() if name in ("FedNova", "cosine over the run") else pytest.mark.slow)
        for name in OPTIONS
    ],
)
def test_clients_with_different_epochs_train_at_once_as_they_train_one_after_another(option):
    def run(execution):
        torch.manual_seed(0)
        options = dict(OPTIONS[option])
        made = {name: options.pop(name)() for name in ("aggregator", "module") if name in options}
        return train(epochs=[1, 4], execution=execution, partition=Dirichlet(6, alpha=1.0), **made, **options)

    one, log, _ = run("trainer")
    all_, logged, _ = run("vectorized")
    assert log.steps == logged.steps
    for name in one:
        torch.testing.assert_close(one[name], all_[name], rtol=1e-4, atol=1e-5)


def test_fednova_divides_by_the_steps_that_each_client_took():
    """With plain SGD, w ← w + τ_eff Σ p_k Δ_k / (η τ_k), τ_eff = Σ p_k η τ_k (section 4 of the paper), in NumPy."""
    updates = {}

    class Spy(RoundCallback):
        def on_client_end(self, trainer, pl_module, round, update, weight):
            start = round.start["layers.0.weight"].double().numpy()
            updates[update.client] = weight, update.num_steps, update.state["layers.0.weight"].double().numpy() - start
            updates["start"] = start

    torch.manual_seed(0)
    server = FederatedServer(FedNova(), client=LocalTraining(epochs=[1, 5]))
    federated, _ = federate(Net(lr=0.1), partition=IID(4), server=server, rounds=1, callbacks=[Spy()])
    start = updates.pop("start")
    total = sum(weight for weight, _, _ in updates.values())
    tau = sum(weight / total * 0.1 * steps for weight, steps, _ in updates.values())
    expected = start + tau * sum(weight / total * move / (0.1 * steps) for weight, steps, move in updates.values())
    assert len({steps for _, steps, _ in updates.values()}) > 1
    assert federated.state_dict()["layers.0.weight"].numpy() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_annealing_over_the_run_covers_the_same_part_of_the_arc_with_any_number_of_epochs():
    rates: dict[tuple[int, int], list[float]] = {}

    class Spy(CosineAnnealing):
        def learning_rate(self, rate, progress):
            rate = super().learning_rate(rate, progress)
            rates.setdefault((self.round.number, self.client), []).append(rate)
            return rate

    train(epochs=[1, 4], callbacks=[Spy()], rounds=2)
    assert len({len(values) for values in rates.values()}) > 1
    assert {values[0] for (round_, _), values in rates.items() if round_ == 0} == {0.1}
    assert [values[0] for (round_, _), values in rates.items() if round_ == 1] == pytest.approx([0.05] * 6)


def test_two_processes_lose_the_same_clients_and_draw_the_same_epochs():
    options = {"dropout": 0.4, "epochs": [1, 3], "partition": IID(5)}
    one, _, trainer = train(devices=1, **options)
    two, _, other = train(devices=2, strategy="ddp_fork", **options)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)
    assert trainer.callback_metrics["round/dropped"] == other.callback_metrics["round/dropped"] > 0


def test_a_trial_run_does_not_draw_epochs():
    training, round_ = prepared(epochs=[3, 5], fast_dev_run=1)
    assert next(training.train_cohort([0], round_)).num_steps == 1


def test_a_range_with_one_number_is_that_number():
    one, log, _ = train(epochs=2)
    two, other, _ = train(epochs=[2, 2])
    assert identical(one, two)
    assert log.steps == other.steps


def test_a_client_that_drops_out_is_yielded_as_lost():
    training, round_ = prepared(dropout=0.999)
    results = list(training.train_cohort(range(4), round_))
    lost = [result for result in results if isinstance(result, LostClient)]
    assert lost == [LostClient(result.client, "dropout", planned=True) for result in lost]
    assert len(lost) == 3
