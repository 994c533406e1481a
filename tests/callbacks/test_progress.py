"""The progress bar counts rounds and clients, and estimates the time that is left."""

import io
import re
from typing import ClassVar

import pytest
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import RichProgressBarTheme

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer, RoundProgressBar
from fl_lightning.callbacks.run import progress
from fl_lightning.callbacks.run.rich_progress import RichRoundProgressBar
from fl_lightning.data import RandomClients
from tests.toys import Blobs, federate


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose only item is the time that the bar reads."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def every_step(monkeypatch):
    """Report progress at every step."""
    monkeypatch.setattr("fl_lightning.client.training._REPORT_INTERVAL", 0.0)


def bar(**options) -> progress._RoundBar:
    return progress._RoundBar(file=io.StringIO(), bar_format=progress._RoundBar.FORMAT, **options)


@pytest.mark.parametrize(
    ("rounds_done", "rounds_left", "clients", "expected"),
    [
        (2, 8, 0, 400.0),  # 2 rounds took 100 s, 8 are left
        (2, 8, 2, 300.0),  # 2.5 rounds took 100 s, 7.5 are left
        (0, 10, 1, 3900.0),  # a quarter of a round took 100 s, 9.75 rounds are left
        (0, 10, 0, None),  # nothing to extrapolate from
        (2, None, 2, None),  # there is no last round
    ],
)
def test_the_time_left_is_extrapolated_from_rounds_and_clients(clock, rounds_done, rounds_left, clients, expected):
    rounds = bar(total=4, initial=clients)
    rounds.rounds_done, rounds.rounds_left = rounds_done, rounds_left
    clock[0] = 100.0
    assert rounds.time_left == (None if expected is None else pytest.approx(expected))


def test_a_bar_with_two_metrics_fits_into_80_columns(clock):
    rounds = bar(total=10, initial=5, desc="Round 10/100", ncols=80)
    rounds.rounds_done, rounds.rounds_left = 9, 91
    clock[0] = 95.0
    rounds.set_postfix({"train/loss": 0.312, "val_accuracy": 0.912})
    line = str(rounds)
    assert len(line) <= 80
    assert line.endswith("| 5/10 clients, 15:05 left, train/loss=0.312, val_accuracy=0.912")


def test_a_count_never_runs_ahead_of_the_clients():
    assert [progress.format_clients(done) for done in (4, 4.0, 4.375, 4.999)] == ["4", "4", "4.37", "4.99"]


def show(callbacks):
    """Run a round of two clients with four batches each."""
    selection = RandomClients(count=2)
    federate(source=Blobs(batch_size=8), selection=selection, rounds=1, callbacks=callbacks, enable_progress_bar=True)


def test_a_bar_shows_how_far_a_client_has_come(capsys, every_step):
    show([RoundProgressBar()])
    text = capsys.readouterr().out
    assert [part for part in ("0.75/2 clients", "1.25/2 clients", "2/2 clients") if part not in text] == []


def test_a_rich_bar_shows_how_far_a_client_has_come(every_step):
    class Recording(RichRoundProgressBar):
        shown: ClassVar[list] = []

        def show_progress(self, clients):
            super().show_progress(clients)
            self.shown.append((self.train_progress_bar.description, self.train_progress_bar.completed))

    show([Recording()])
    assert Recording.shown == [
        ("Round 1/1, clients", 0),
        ("Round 1/1, 0.25 clients", 0.25),
        ("Round 1/1, 0.50 clients", 0.5),
        ("Round 1/1, 0.75 clients", 0.75),
        ("Round 1/1, clients", 1),
        ("Round 1/1, 1.25 clients", 1.25),
        ("Round 1/1, 1.50 clients", 1.5),
        ("Round 1/1, 1.75 clients", 1.75),
    ]


@pytest.mark.parametrize("chosen", [RoundProgressBar, RichRoundProgressBar])
def test_clients_that_trained_at_once_are_not_counted_twice(capsys, every_step, chosen):
    class Counting(chosen):
        counts: ClassVar[list] = []

        def on_client_end(self, *args):
            super().on_client_end(*args)
            self.counts.append(self.train_progress_bar.n if chosen is RoundProgressBar else self._shown)

    server = FederatedServer(client=LocalTraining(execution="vectorized", chunk=2))
    federate(rounds=1, server=server, callbacks=[Counting()], enable_progress_bar=True)
    assert Counting.counts == [2, 2, 4, 4]  # two chunks of two clients


def test_a_bar_of_a_fit_that_is_over_hears_nothing_more(every_step):
    server = FederatedServer()
    federate(rounds=1, server=server, callbacks=[RoundProgressBar()], enable_progress_bar=True)
    assert server.client.on_progress is None


def test_a_run_shows_rounds_clients_and_the_time_left(capsys):
    federate(rounds=3, selection=RandomClients(count=2), callbacks=[RoundProgressBar()], enable_progress_bar=True)
    shown = capsys.readouterr().out
    assert "Round 1/3 |" in shown
    assert "Round 3/3 |" in shown
    assert "2/2 clients, 00:0" in shown
    assert " left, train/loss=" in shown


def test_without_a_last_round_no_time_is_left(capsys):
    federate(rounds=-1, max_steps=2, callbacks=[RoundProgressBar()], enable_progress_bar=True)
    shown = capsys.readouterr().out
    assert "Round 2 |" in shown
    assert "left" not in shown


def test_a_rich_bar_stays_rich_with_its_settings_and_counts_clients(capsys):
    theme = RichProgressBarTheme(metrics_format=".1f")
    chosen = RichProgressBar(refresh_rate=7, theme=theme, console_kwargs={"width": 200})
    _, trainer = federate(rounds=2, selection=RandomClients(count=3), callbacks=[chosen], enable_progress_bar=True)
    bar = trainer.progress_bar_callback
    assert isinstance(bar, RichProgressBar)
    assert (bar.refresh_rate, bar.theme) == (7, theme)
    shown = capsys.readouterr().out
    assert "Round 2/2, clients" in shown
    assert " 3/3 " in shown
    assert "train/loss: " in shown
    assert "Epoch" not in shown


def test_a_rich_bar_shows_the_time_left(capsys):
    class Shown(RichRoundProgressBar):
        left: ClassVar[list] = []

        def get_metrics(self, trainer, pl_module):
            metrics = super().get_metrics(trainer, pl_module)
            self.left.append(metrics.get("left"))
            return metrics

    federate(rounds=2, callbacks=[Shown()], enable_progress_bar=True)
    known = [left for left in Shown.left if left is not None]
    assert known
    assert all(re.fullmatch(r"\d\d:\d\d", left) for left in known)


def test_a_rich_bar_of_the_users_own_is_kept():
    class Own(RichProgressBar):
        pass

    _, trainer = federate(rounds=1, callbacks=[Own()], enable_progress_bar=True)
    assert type(trainer.progress_bar_callback) is Own
