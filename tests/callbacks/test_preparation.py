"""How the server prepares Lightning's own callbacks and flags for rounds."""

import copy
import re

import pytest
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    ModelSummary,
    RichModelSummary,
)
from pytorch_lightning.tuner import Tuner

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID
from tests.toys import Blobs, Net, federate, quiet_trainer


class Scores(Callback):
    """Keeps the validation loss of every round that has one."""

    def __init__(self) -> None:
        self.by_round: dict[int, float] = {}

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.by_round[trainer.current_epoch] = float(trainer.callback_metrics["val_loss"])


@pytest.mark.parametrize("options", [{}, {"save_on_train_epoch_end": True}, {"every_n_train_steps": 1}])
@pytest.mark.parametrize(
    "flags", [{"check_val_every_n_epoch": 2}, {"check_val_every_n_epoch": None, "val_check_interval": 2}]
)
def test_a_monitored_checkpoint_records_only_scores_of_its_own_round(tmp_path, options, flags):
    scores = Scores()
    best = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1, filename="{epoch}", **options)
    federate(callbacks=[scores, best], rounds=5, enable_checkpointing=True, default_root_dir=tmp_path, **flags)
    recorded = {int(re.search(r"epoch=(\d+)", path)[1]): float(score) for path, score in best.best_k_models.items()}
    assert sorted(recorded) == [1, 3]
    assert recorded == scores.by_round


def test_a_checkpoint_after_every_step_has_the_score_of_its_own_round(tmp_path):
    scores = Scores()
    best = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1, filename="{epoch}", every_n_train_steps=1)
    federate(callbacks=[scores, best], rounds=3, enable_checkpointing=True, default_root_dir=tmp_path)
    assert sorted(map(float, best.best_k_models.values())) == sorted(scores.by_round.values())


def test_a_checkpoint_that_monitors_training_is_written_in_rounds_without_validation(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="train/loss", save_top_k=-1, filename="{epoch}")
    federate(
        callbacks=[best],
        rounds=4,
        enable_checkpointing=True,
        default_root_dir=tmp_path,
        check_val_every_n_epoch=2,
    )
    assert len(best.best_k_models) == 4


def test_a_run_with_rare_validation_warns_of_no_missing_metric(tmp_path, recwarn):
    best = ModelCheckpoint(tmp_path, monitor="val_loss")
    federate(
        callbacks=[best],
        rounds=2,
        enable_checkpointing=True,
        default_root_dir=tmp_path,
        check_val_every_n_epoch=2,
        num_sanity_val_steps=0,
    )
    assert not [warning for warning in recwarn if "could not find the monitored key" in str(warning.message)]


class CountSteps(RoundCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.steps.append(update.num_steps)


@pytest.mark.parametrize(("fast_dev_run", "steps"), [(True, 1), (2, 2)])
def test_fast_dev_run_is_fast_for_clients_too(fast_dev_run, steps):
    count = CountSteps()
    server = FederatedServer(client=LocalTraining(epochs=5, limit_train_batches=3))
    _, trainer = federate(server=server, callbacks=[count], fast_dev_run=fast_dev_run)
    assert count.steps == [steps] * 4
    assert trainer.global_step == 1


def test_a_client_may_be_limited_to_some_batches():
    count = CountSteps()
    federate(server=FederatedServer(client=LocalTraining(limit_train_batches=2)), callbacks=[count], rounds=1)
    assert count.steps == [2] * 4


@pytest.mark.parametrize(
    ("search", "message"),
    [("lr_find", r"run it on the module itself, Tuner"), ("scale_batch_size", r"set client\.batch_size")],
)
def test_the_tuners_searches_are_refused(search, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FederatedServer()])
    data = FederatedDataModule(Blobs(), partition=IID(2))
    with pytest.raises(MisconfigurationError, match=message):
        getattr(Tuner(trainer), search)(FederatedModule(Net()), datamodule=data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("finder", [LearningRateFinder, BatchSizeFinder])
def test_the_finders_are_refused_as_callbacks_too(finder):
    with pytest.raises(MisconfigurationError, match=finder.__name__):
        federate(callbacks=[finder()])


def test_scaling_the_batch_size_of_validation_is_refused():
    trainer = quiet_trainer(callbacks=[FederatedServer()])
    data = FederatedDataModule(Blobs(), partition=IID(2))
    with pytest.raises(MisconfigurationError, match=r"set client\.batch_size"):
        Tuner(trainer).scale_batch_size(FederatedModule(Net()), datamodule=data, method="validate")


class TwoParts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = self.layers[0].weight.new_zeros(3, 6)
        self.head = copy.deepcopy(self.layers[3])


@pytest.mark.parametrize("kind", [ModelSummary, RichModelSummary])
def test_the_summary_lists_the_modules_own_layers(kind):
    shown = {}

    class Kept(kind):
        @staticmethod
        def summarize(summary_data, total_parameters, trainable_parameters, model_size, modes, **_):
            shown.update(dict(summary_data))

    federate(TwoParts(), callbacks=[Kept()], rounds=1, enable_model_summary=True)
    assert shown["Name"] == ["layers", "head"]
    assert shown["Type"] == ["Sequential", "Linear"]
    assert shown["In sizes"] == ["[3, 6]", "?"]
    assert shown["FLOPs"][0].strip() == "480"  # 2 * 3 * (6 * 8 + 8 * 4)


def test_a_summary_still_works_for_another_module_afterwards():
    summary = ModelSummary()
    federate(callbacks=[summary], rounds=1, enable_model_summary=True)
    quiet_trainer(max_epochs=1, callbacks=[summary], enable_model_summary=True).fit(Net(), datamodule=Blobs())
