"""What ``fl_lightning/_lightning`` relies on beyond Lightning's public interface.

Each test fails with a sentence that says which of our files breaks when Lightning changes the name.
"""

import ast
import copy
import re
import signal

import pytest
import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint, ModelSummary, StochasticWeightAveraging
from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.utilities.compile import from_compiled
from pytorch_lightning.utilities.model_helpers import is_overridden

from fl_lightning._lightning.client_module import client_copy, without_compilation
from fl_lightning._lightning.delegation import Delegate
from fl_lightning._lightning.server_trainer import evaluated_metrics
from fl_lightning._lightning.trainer import TrainerTemplate
from tests.runs import REPOSITORY
from tests.toys import Blobs, Net, quiet_trainer

CPU = torch.device("cpu")


def test_a_module_keeps_its_trainer_under_this_name():
    assert Net()._trainer is None, (
        "server_trainer.trainer_of and client_module.client_copy read LightningModule._trainer"
    )


def test_the_name_of_the_current_hook_is_kept_by_the_module():
    names = []

    class Watch(Net):
        def training_step(self, batch, batch_idx):
            names.append(self._current_fx_name)
            return super().training_step(batch, batch_idx)

    quiet_trainer(fast_dev_run=True).fit(Watch(), datamodule=Blobs())
    assert names == ["training_step"], "delegation.Delegate and client_module set LightningModule._current_fx_name"


def test_a_module_that_lightning_compiles_keeps_its_own_steps_under_this_name():
    module = Net()
    assert module._compiler_ctx is None
    compiled = from_compiled(torch.compile(module, backend="eager"))
    assert compiled._compiler_ctx is not None, "client_module.without_compilation reads LightningModule._compiler_ctx"
    assert without_compilation(compiled).training_step == module.training_step
    assert module._compiler_ctx is None


def test_a_module_records_its_metric_attributes_under_this_name():
    assert Net()._metric_attributes is None, "client_module.client_copy resets LightningModule._metric_attributes"


@pytest.mark.parametrize("name", ["_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams"])
def test_hyper_parameters_are_kept_under_the_names_that_are_adopted(name):
    assert hasattr(Net(), name), f"hparams.adopt_hyper_parameters copies LightningModule.{name}"


def test_hyper_parameters_from_the_command_line_are_in_a_context_variable():
    assert _given_hyperparameters.get() is None, "hparams.made_by_command_line reads _given_hyperparameters"


def test_the_placeholder_metric_can_be_switched_off(tmp_path):
    assert TensorBoardLogger(tmp_path)._default_hp_metric is True, "hparams.without_placeholder_metric sets it"


def test_the_distributed_sampler_is_a_flag_of_the_accelerator_connector():
    connector = quiet_trainer()._accelerator_connector
    assert connector.use_distributed_sampler is True, "server_trainer.keep_samplers sets use_distributed_sampler"


def test_sync_batchnorm_leaves_a_layer_synchronisation():
    message = "server_trainer.synchronises_batch_norm reads _accelerator_connector._layer_sync"
    assert quiet_trainer()._accelerator_connector._layer_sync is None, message
    assert quiet_trainer(sync_batchnorm=True)._accelerator_connector._layer_sync is not None, message


def test_a_checkpoint_callback_records_when_and_where_it_saved(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path)
    assert checkpoint._save_on_train_epoch_end is None, "server_trainer.save_at_epoch_end sets it"
    assert checkpoint._last_global_step_saved == 0, "checkpoint.AtomicCheckpoint.has_saved reads it"
    assert checkpoint._last_checkpoint_saved == "", "checkpoint.AtomicCheckpoint sets it"
    names = (checkpoint._every_n_epochs, checkpoint._every_n_train_steps)
    assert names == (1, 0), "server_trainer.save_at_epoch_end turns steps into rounds"


def test_a_checkpoint_callback_saves_once_per_step(tmp_path):
    class Marked(ModelCheckpoint):
        def on_train_epoch_end(self, trainer, pl_module):
            self._last_global_step_saved = trainer.global_step
            super().on_train_epoch_end(trainer, pl_module)

    checkpoint = Marked(tmp_path, monitor="val_loss", save_on_train_epoch_end=True)
    quiet_trainer(max_epochs=1, callbacks=[checkpoint], enable_checkpointing=True).fit(Net(), datamodule=Blobs())
    assert not list(tmp_path.iterdir()), "server_trainer.skip_stale_scores sets ModelCheckpoint._last_global_step_saved"


def test_a_model_summary_is_made_by_the_method_that_is_replaced():
    summarised = []

    class Watch(ModelSummary):
        def _summary(self, trainer, pl_module):
            summarised.append(pl_module)
            return super()._summary(trainer, pl_module)

    module = Net()
    quiet_trainer(fast_dev_run=True, callbacks=[Watch()], enable_model_summary=True).fit(module, datamodule=Blobs())
    assert summarised == [module], "server_trainer.summarise replaces ModelSummary._summary"


def test_stochastic_weight_averaging_calls_the_methods_that_are_replaced():
    called = set()

    class Watch(StochasticWeightAveraging):
        def __getattribute__(self, name):
            called.add(name)
            return super().__getattribute__(name)

    quiet_trainer(max_epochs=2, callbacks=[Watch(0.1, swa_epoch_start=1)]).fit(Net(), datamodule=Blobs())
    replaced = {"pl_module_contains_batch_norm", "update_parameters", "transfer_weights"}
    assert replaced <= called, "callbacks/run/weight_averaging.py replaces methods of StochasticWeightAveraging"


def test_a_checkpoint_is_written_by_the_method_that_is_overridden(tmp_path):
    written = []

    class Watch(ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            written.append(filepath)

    quiet_trainer(max_epochs=1, callbacks=[Watch(tmp_path)], enable_checkpointing=True).fit(Net(), datamodule=Blobs())
    assert written, "checkpoint.AtomicCheckpoint overrides ModelCheckpoint._save_checkpoint, which is not called"


def test_metrics_logged_in_validation_are_known_by_name():
    class AlsoLogs(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.log("fedfoo/x", 1.0)

    trainer = quiet_trainer(max_epochs=1, callbacks=[AlsoLogs()])
    trainer.fit(Net(), datamodule=Blobs())
    assert "fedfoo/x" in trainer.callback_metrics
    found = sorted(evaluated_metrics(trainer))
    assert found == ["val_accuracy", "val_loss"], "server_trainer.evaluated_metrics reads val_loop._results"


def test_tensorboards_writer_takes_protocol_buffers(tmp_path):
    writer = TensorBoardLogger(tmp_path).experiment._get_file_writer()
    assert hasattr(writer, "add_summary"), "tensorboard.write_summaries uses _get_file_writer().add_summary"
    assert hasattr(writer, "add_event"), "tensorboard.mark_restart uses _get_file_writer().add_event"


def test_a_delegate_looks_overridden():
    wrapper = LightningModule()
    assert not is_overridden("validation_step", wrapper)
    wrapper.validation_step = Delegate(Net(), "validation_step")
    assert is_overridden("validation_step", wrapper), "delegation.Delegate is recognised by its __wrapped__"


def test_hooks_that_ran_once_do_not_look_overridden_in_a_client():
    class Built(Net):
        def setup(self, stage):
            raise AssertionError("setup ran again")

    client = client_copy(Built())
    assert isinstance(client, Built)
    assert not is_overridden("setup", client), "client_module.client_copy restores LightningModule's own hooks"
    assert is_overridden("training_step", client)
    assert type(copy.deepcopy(client)) is type(client)


def test_a_copied_trainer_trains_and_shares_nothing_with_its_template():
    template = TrainerTemplate(CPU, max_epochs=2, limit_val_batches=0)
    for _ in range(2):
        trainer = template.copy()
        trainer.fit(Net(), datamodule=Blobs())
        message = "trainer.TrainerTemplate.copy relies on copy.deepcopy of a Trainer that has not run"
        assert (trainer.current_epoch, trainer.global_step) == (2, 16), message
        assert trainer.strategy is not template.copy().strategy, message
        assert trainer.fit_loop.trainer is trainer, message
        assert trainer.strategy.mean_loss is not None


def test_callbacks_that_packages_add_to_every_trainer_do_not_reach_clients(monkeypatch):
    from pytorch_lightning.trainer.connectors import callback_connector

    monkeypatch.setattr(callback_connector, "_load_external_callbacks", lambda group: [Callback()])
    assert quiet_trainer().callbacks
    given = Callback()
    trainer = TrainerTemplate(CPU, [given], max_time="00:01:00:00").copy()
    assert [type(callback).__name__ for callback in trainer.callbacks] == ["Callback", "Timer"]


def called_methods(owner: object, *names: str) -> list[str]:
    """Replace methods of an object with ones that note their names, and return the list of names."""
    called: list[str] = []
    for name in names:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, n=name, o=original, **kwargs: (called.append(n), o(*args, **kwargs))[1])
    return called


def test_a_fit_calls_the_methods_that_clients_replace(tmp_path):
    trainer = quiet_trainer(max_epochs=1, logger=CSVLogger(tmp_path), log_every_n_steps=1, limit_val_batches=0)
    message = "client_device.avoid_waiting replaces it, but a fit does not call it"
    owners = {
        trainer._checkpoint_connector: ["resume_end"],
        trainer._logger_connector: ["log_metrics", "teardown"],
        trainer.fit_loop: ["setup_data"],
        trainer.fit_loop.epoch_loop: ["teardown", "_should_check_val_fx"],
        trainer._signal_connector: ["_get_current_signal_handlers"],
        trainer: ["_run_stage"],
    }
    called = {owner: called_methods(owner, *names) for owner, names in owners.items()}
    trainer.fit(Net(), datamodule=Blobs())
    for owner, names in owners.items():
        assert set(called[owner]) == set(names), message
    assert "train_loss_of_client" in trainer._logger_connector._logged_metrics


def test_a_client_restores_the_handlers_of_all_signals():
    def handlers():
        return {number: signal.getsignal(number) for number in signal.valid_signals()}

    during, before = [], handlers()

    class Signalled(Net):
        def on_train_start(self):
            during.append(signal.getsignal(signal.SIGTERM))

    TrainerTemplate(CPU, max_epochs=1, limit_val_batches=0).copy().fit(Signalled(), datamodule=Blobs())
    assert during != [before[signal.SIGTERM]], "a client ends after the step in which SIGTERM arrives"
    assert handlers() == before


def test_batches_are_counted_on_the_device_that_the_strategy_claims():
    asked = []

    class Watch(SingleDeviceStrategy):
        def reduce(self, tensor, *args, **kwargs):
            asked.append(tensor.device)
            return tensor

    quiet_trainer(max_epochs=1, strategy=Watch(CPU), limit_val_batches=0).fit(Net(), datamodule=Blobs())
    assert asked, "client_device.HostCounting claims to be on the CPU because setup_data reduces the number of batches"


def test_a_clients_trainer_keeps_what_it_logs_without_a_log():
    trainer = TrainerTemplate(CPU, max_epochs=1, limit_val_batches=0, log_every_n_steps=1).copy()
    trainer.fit(Net(), datamodule=Blobs())
    assert "train_loss_of_client" in trainer.logged_metrics


def private_names(source: str) -> set[str]:
    """Return private attributes of other classes' objects, and private names that are imported from other modules."""
    found, own = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if of_self else found).add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("fl_lightning"):
            found |= {alias.name for alias in node.names if re.match(r"_[a-z]", alias.name)}
    return found - own


#: private names of torch, torchmetrics and os that have no public equivalent
_ALLOWED = {"_exit", "_run_exitfuncs", "_sync_dist", "_version", "_ops", "_schema", "_unsafe_view"}


def test_private_names_are_used_in_one_folder_only():
    offenders = {}
    for folder in ("fl_lightning", "callbacks"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if "_lightning" in path.relative_to(REPOSITORY / folder).parts:
                continue
            if names := private_names(path.read_text()) - _ALLOWED:
                offenders[str(path.relative_to(REPOSITORY))] = names
    assert offenders == {}
