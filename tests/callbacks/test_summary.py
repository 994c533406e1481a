"""What a run prints about itself, and that nothing that only decorates a run can end it."""

import functools
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from fl_lightning.callbacks import HyperParameters, PartitionPicture, RunSummary, TensorBoardLayout
from fl_lightning.callbacks.run.decoration import decoration
from fl_lightning.callbacks.run.hparams import _format_value
from fl_lightning.core.errors import MisconfigurationError
from tests.callbacks.test_layout import hparams
from tests.toys import Net, federate


class Norm(Enum):
    BATCH = "batch_norm"


class Unreadable:
    """An object of which nothing can be read."""

    def __init__(self, size: int = 3) -> None:
        pass

    @property
    def size(self):
        raise RuntimeError("no size")

    def __repr__(self):
        raise RuntimeError("no text")


def nested_in_itself() -> dict:
    values: dict = {}
    values["items"] = [values, values]
    return values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"lr": 0.1, "sizes": [16, 32]}, "lr=0.1, sizes=(16, 32)"),
        ({}, "none"),
        (torch.optim.SGD, "SGD"),
        (functools.partial(torch.optim.SGD, lr=0.1), "SGD(lr=0.1)"),
        ({"b", "a"}, "a, b"),
        (range(30), "range"),
        (list(range(30)), ", ".join(map(str, range(20))) + ", ..."),
        (torch.ones(3, 2), "Tensor of shape (3, 2)"),
        (torch.tensor(0.5), 0.5),
        (torch.empty((), device="meta"), "Tensor"),
        (np.float32(0.5), 0.5),
        (np.bool_(True), "True"),
        (np.ones(3), "ndarray of shape (3,)"),
        (torch.device("cpu"), "cpu"),
        (torch.float16, "torch.float16"),
        (Path("data/mnist"), "data/mnist"),
        (Norm.BATCH, "BATCH"),
        (torch.nn.functional.relu, "relu"),
        (1j, "1j"),
        (2**70, str(2**70)),
        (10**5000, "int"),
        ("\ud800", "?"),
        (Unreadable(), "Unreadable"),
        ({"class_path": "torch.optim.SGD", "init_args": 3}, "dict"),
        (nested_in_itself(), "items=((items=list), (items=list))"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_hyper_parameter_of_any_type_has_a_text(value, text):
    assert _format_value(value) == text


class Configurable(Net):
    """A user's module with hyper-parameters that are not numbers."""

    def __init__(self, extra: object = None, optimizer: object = None, lr: float = 0.1, momentum: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_hyper_parameters_of_any_type_are_shown_and_the_run_goes_on(tmp_path):
    extra = {"classes": {1, 2}, "mean": torch.zeros(3), "device": torch.device("cpu"), 1: None}
    _, trainer = federate(
        Configurable(extra, functools.partial(torch.optim.SGD, lr=0.1)),
        rounds=2,
        logger=TensorBoardLogger(tmp_path, "", version="run"),
    )
    assert trainer.current_epoch == 2
    fields = hparams(tmp_path / "run", "_hparams_/session_start_info").session_start_info.hparams
    assert fields["model.extra"].string_value == "classes=(1, 2), mean=Tensor of shape (3,), device=cpu, 1=none"
    assert fields["model.optimizer"].string_value == "SGD(lr=0.1)"


@pytest.mark.parametrize(
    ("callback", "function"),
    [
        (HyperParameters, "hparams.run_parameters"),
        (HyperParameters, "hparams.without_placeholder_metric"),
        (TensorBoardLayout, "layout.charts_of"),
        (PartitionPicture, "partition_picture.Ownership.of"),
        (RunSummary, "summary._print"),
        (RunSummary, "summary.evaluated_metrics"),
    ],
)
def test_a_decoration_that_fails_causes_a_warning_and_the_run_goes_on(tmp_path, monkeypatch, callback, function):
    def broken(*_):
        raise ValueError("a bug\nin two lines")

    monkeypatch.setattr(f"fl_lightning.callbacks.run.{function}", broken)
    logger = TensorBoardLogger(tmp_path, "", version="run")
    with pytest.warns(UserWarning, match=rf"^{callback.__name__}\.\w+ failed, .* ValueError: a bug in two lines$"):
        _, trainer = federate(rounds=2, callbacks=[callback()], logger=logger)
    assert trainer.current_epoch == 2


@pytest.mark.parametrize("error", [MisconfigurationError, BrokenPipeError, KeyboardInterrupt, SystemExit])
def test_a_users_mistake_a_closed_pipe_and_an_interruption_pass_through_a_decoration(error):
    @decoration
    def hook():
        raise error

    with pytest.raises(error):
        hook()


def test_a_resumed_run_that_had_finished_says_so_and_writes_no_second_table_of_hyper_parameters(tmp_path, capsys):
    def fit(ckpt_path=None):
        logger = TensorBoardLogger(tmp_path, "", version="run")
        callbacks = [RunSummary(), HyperParameters()]
        federate(rounds=2, callbacks=callbacks, logger=logger, enable_checkpointing=True, ckpt_path=ckpt_path)

    fit()
    capsys.readouterr()
    fit(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert (
        capsys.readouterr().out
        == "This run has already finished its 2 rounds: to train more, set --trainer.max_epochs above 2\n"
    )
    files = (tmp_path / "run").glob("events.out.tfevents.*")
    events = [event for file in files for event in EventFileLoader(str(file)).Load()]
    assert [value.tag for event in events for value in event.summary.value].count("_hparams_/experiment") == 1


@pytest.mark.parametrize(("loggers", "hints"), [([CSVLogger], 0), ([TensorBoardLogger], 1), ([], 0)])
def test_only_a_tensorboard_logger_makes_the_run_mention_tensorboard(tmp_path, capsys, loggers, hints):
    federate(rounds=1, callbacks=[RunSummary()], logger=[kind(tmp_path, "", version="run") for kind in loggers])
    printed = capsys.readouterr().out
    assert printed.count("tensorboard --logdir") == hints
    assert ("logs" in printed) == bool(loggers)


def test_the_tensorboard_hint_names_the_folder_of_the_tensorboard_logger(tmp_path, capsys):
    loggers = [CSVLogger(tmp_path, "csv", version="run"), TensorBoardLogger(tmp_path, "events", version="run")]
    federate(rounds=1, callbacks=[RunSummary()], logger=loggers)
    assert f"tensorboard --logdir {tmp_path / 'events' / 'run'}" in capsys.readouterr().out
