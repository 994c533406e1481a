"""Clients whose training raises an exception or takes too long, whatever trains them."""

import pytest
import torch
from pytorch_lightning import Callback

from fl_lightning import ClientUpdate
from fl_lightning.callbacks import ClientCallback, Ditto, RoundProgressBar
from fl_lightning.callbacks.run.rich_progress import RichRoundProgressBar
from fl_lightning.client.failures import describe_error
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError
from fl_lightning.core.update import LostClient
from tests.client.test_training import Leaky, prepared
from tests.faults import run
from tests.toys import identical


class Fragile(Leaky):
    """Fails in the middle of a step of one client, and leaves Python state, gradients and a frozen layer behind."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.trainer.callbacks[0].client == 1 and self.seen == 2:
            loss.backward()
            self.layers[0].requires_grad_(False)
            torch.rand(3)
            raise RuntimeError("in the second step")
        return loss


class Who(ClientCallback):
    """Tells the module which client it is."""

    def frozen(self, module):
        return ["layers.0.bias"] if self.client == 1 else []


def test_a_client_that_fails_leaves_nothing_behind_for_the_next_one():
    torch.manual_seed(0)
    training, round_ = prepared(Fragile(), epochs=2, callbacks=[Who()])
    first, lost, second = training.train_cohort([0, 1, 2], round_)
    assert isinstance(lost, LostClient)
    assert (lost.client, lost.reason, lost.planned) == (1, "RuntimeError: in the second step", False)
    assert isinstance(lost.error, RuntimeError)
    torch.manual_seed(0)
    training, round_ = prepared(Fragile(), epochs=2, callbacks=[Who()])
    for update, expected in zip((first, second), training.train_cohort([0, 2], round_), strict=True):
        assert identical(dict(update.state), dict(expected.state))
        assert update.metrics["loss"] == expected.metrics["loss"]


def test_the_global_generators_are_left_as_they_were_after_a_failure():
    training, round_ = prepared(Fragile(), callbacks=[Who()])
    before = torch.get_rng_state()
    assert isinstance(next(training.train_cohort([1], round_)), LostClient)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_users_mistake_is_not_a_clients_failure():
    class Mistaken(ClientCallback):
        def on_client_start(self, module, optimizers):
            raise MisconfigurationError("lr=-1: set it above 0")

    for execution in ("trainer", "vectorized"):
        client = {"on_error": "drop", "execution": execution}
        with pytest.raises(MisconfigurationError, match="lr=-1: set it above 0"):
            run("FedAvg", {}, rounds=1, client=client, client_callbacks=[Mistaken()])


def test_ctrl_c_is_not_a_clients_failure():
    class Interrupted(Callback):
        def on_train_start(self, trainer, pl_module):
            raise KeyboardInterrupt

    training, round_ = prepared(callbacks=[Interrupted()])
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        next(training.train_cohort([0], round_))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("wrong"), "ValueError: wrong"),
        (ValueError(), "ValueError"),
        (ValueError("\n  first\nsecond"), "ValueError: first"),
        (KeyError("layer"), "KeyError: 'layer'"),
        (ValueError("x" * 500), f"ValueError: {'x' * 187}…"),
    ],
)
def test_an_error_is_described_in_one_line(error, text):
    assert describe_error(error) == text


class Clock:
    """A clock that moves only when somebody works."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fl_lightning.client.failures.monotonic", clock)
    return clock


class Slow(ClientCallback):
    """Makes every step of client 1 take 10 seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __deepcopy__(self, memo):
        return Slow(self.clock)

    def on_step(self, optimizer):
        self.clock.now += 10 if self.client == 1 else 0

    def on_upload(self, update):
        self.clock.now += 1


def test_a_client_that_takes_too_long_is_lost_between_two_of_its_steps(clock):
    training, round_ = prepared(callbacks=[Slow(clock)], epochs=50, timeout=25)
    (lost,) = training.train_cohort([1], round_)
    assert lost == LostClient(1, "took longer than client.timeout=25 s")
    assert lost.error is None
    assert clock.now == 30


def test_a_client_whose_end_took_too_long_is_lost(clock):
    training, round_ = prepared(callbacks=[Slow(clock)], timeout=0.5)
    (lost,) = training.train_cohort([0], round_)
    assert lost.reason == "took longer than client.timeout=0.5 s"


def test_clients_in_time_are_not_lost_however_slow_the_others_are(clock):
    training, round_ = prepared(callbacks=[Slow(clock)], timeout=25)
    results = list(training.train_cohort([0, 1, 2], round_))
    assert [type(result) for result in results] == [ClientUpdate, LostClient, ClientUpdate]


def test_a_personal_model_that_takes_too_long_loses_its_client(clock):
    training, round_ = prepared(callbacks=[Slow(clock), Ditto()], timeout=55)  # 4 steps, then 4 of the personal model
    (lost,) = training.train_cohort([1], round_)
    assert lost.reason == "took longer than client.timeout=55 s"
    assert clock.now == 61


def test_a_timeout_cannot_be_combined_with_clients_that_train_at_once():
    message = (
        "client.execution=vectorized, but client.timeout is set, and clients that train at once cannot be timed"
        " separately: set client.execution to trainer"
    )
    with pytest.raises(MisconfigurationError, match=message):
        run("FedAvg", {}, rounds=1, client={"execution": "vectorized", "timeout": 5})


def test_clients_that_fail_only_together_train_alone_and_a_line_says_so(monkeypatch):
    from fl_lightning.client.vectorized import training as vectorized

    plain = vectorized.ModelStack

    def limited(module, trained, starts):
        if len(starts) > 1:
            raise MemoryError("out of memory")
        return plain(module, trained, starts)

    expected, _ = run("FedAvg", {}, rounds=1, client={"execution": "vectorized", "chunk": 1})
    monkeypatch.setattr(vectorized, "ModelStack", limited)
    with pytest.warns(match="4 clients could not train at once .MemoryError: out of memory.*: set client.chunk"):
        state, _ = run("FedAvg", {}, rounds=1, client={"execution": "vectorized"})
    assert identical(state, expected)


def test_with_raise_nobody_trains_after_a_client_that_fails():
    trained = []

    class Count(ClientCallback):
        def on_upload(self, update):
            trained.append(self.client)

    with pytest.raises(RoundFailedError):
        run("FedAvg", {(0, 1): "exception"}, rounds=1, client_callbacks=[Count()])
    assert trained == [0]


def test_the_progress_bar_reaches_its_end_and_says_how_many_clients_are_lost():
    class Bar(RoundProgressBar):
        def on_train_batch_end(self, *args):
            ended.append((self.train_progress_bar.n, self.train_progress_bar.total, str(self.train_progress_bar)))
            super().on_train_batch_end(*args)

    ended: list[tuple[float, int, str]] = []
    plan = {(0, 1): "exception", (1, 2): "nan"}
    run("FedAvg", plan, rounds=3, client={"on_error": "drop"}, callbacks=[Bar()], enable_progress_bar=True)
    assert [(done, total) for done, total, _ in ended] == [(4, 4)] * 3
    assert ["3/4 clients, 1 lost" in line for *_, line in ended] == [True, True, False]
    assert "4/4 clients" in ended[2][2]


def test_the_rich_progress_bar_says_how_many_clients_are_lost():
    class Bar(RichRoundProgressBar):
        def on_train_batch_end(self, *args):
            descriptions.append(self.train_progress_bar.description)
            super().on_train_batch_end(*args)

    descriptions: list[str] = []
    run("FedAvg", {(0, 1): "nan"}, rounds=2, client={"on_error": "drop"}, callbacks=[Bar()], enable_progress_bar=True)
    assert descriptions == ["Round 1/2, 1 lost, clients", "Round 2/2, clients"]
