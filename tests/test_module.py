import copy
import pickle

import pytest
import torch
from pytorch_lightning import Callback, LightningModule
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from fl_lightning import FederatedModule
from fl_lightning.core.errors import MisconfigurationError
from tests.toys import Blobs, Net, blobs, federate, identical, quiet_trainer


def test_a_checkpoint_of_the_run_loads_as_the_users_module(tmp_path):
    federated, trainer = federate(Net(hidden=5, lr=0.2, batch_norm=True))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    loaded = Net.load_from_checkpoint(tmp_path / "run.ckpt")
    assert identical(dict(loaded.state_dict()), dict(federated.module.state_dict()))
    assert dict(loaded.hparams) == {"hidden": 5, "lr": 0.2, "batch_norm": True, "dropout": 0.0, "momentum": 0.0}


def test_a_federated_module_has_the_state_and_hyper_parameters_of_its_module():
    module = Net(hidden=3)
    federated = FederatedModule(module)
    assert identical(dict(federated.state_dict()), dict(module.state_dict()))
    assert federated.hparams == module.hparams


def test_validation_and_test_run_the_modules_own_steps():
    federated, trainer = federate(rounds=1)
    (validated,) = trainer.validate(federated, datamodule=trainer.datamodule, verbose=False)
    (tested,) = trainer.test(federated, datamodule=trainer.datamodule, verbose=False)
    logits = federated(blobs().tensors[0])
    accuracy = (logits.argmax(1) == blobs().tensors[1]).float().mean().item()
    assert tested["test_accuracy"] == pytest.approx(accuracy)
    assert validated["val_accuracy"] == pytest.approx(accuracy)


class Hooked(Net):
    """Has a step without batch_idx, two validation loaders, a metric object, hooks, and its own checkpoint keys."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()
        self.calls: list[str] = []

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.mean.update(batch[1].float())
        self.log(f"mean_{dataloader_idx}", self.mean, add_dataloader_idx=False)

    def on_validation_epoch_start(self):
        self.calls.append("start")

    def on_validation_epoch_end(self):
        self.calls.append("end")
        self.log("rounds_seen", float(self.current_epoch))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = 7

    def on_load_checkpoint(self, checkpoint):
        self.mine = checkpoint["mine"]


class TwoLoaders(Blobs):
    def val_dataloader(self):
        return [DataLoader(blobs(20), batch_size=10), DataLoader(blobs(40), batch_size=10)]


def test_the_modules_hooks_and_logging_work_as_in_a_plain_run(tmp_path):
    federated, trainer = federate(Hooked(), source=TwoLoaders(), rounds=2)
    assert federated.module.calls[-4:] == ["start", "end"] * 2
    assert trainer.callback_metrics["rounds_seen"] == 1.0
    assert trainer.callback_metrics["mean_0"] == pytest.approx(1.5)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    assert Hooked.load_from_checkpoint(tmp_path / "run.ckpt").mine == 7


def test_a_validation_step_may_leave_out_the_batch_index():
    class Short(Net):
        def validation_step(self, batch):
            self.log("seen", float(len(batch[1])), batch_size=1)

    _, trainer = federate(Short(), rounds=1)
    assert trainer.callback_metrics["seen"] > 0


def test_a_run_without_a_server_is_refused():
    from fl_lightning import FederatedDataModule
    from fl_lightning.data import IID

    with pytest.raises(MisconfigurationError, match="no FederatedServer"):
        quiet_trainer(max_epochs=1).fit(FederatedModule(Net()), FederatedDataModule(Blobs(), partition=IID(2)))


@pytest.mark.parametrize("missing", ["training_step", "configure_optimizers"])
def test_a_module_that_cannot_train_is_refused(missing):
    methods = {"training_step": Net.training_step, "configure_optimizers": Net.configure_optimizers}
    del methods[missing]
    incomplete = type("Incomplete", (LightningModule,), methods)
    with pytest.raises(MisconfigurationError, match=f"Incomplete has no {missing}"):
        FederatedModule(incomplete())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: Net(hidden=9).state_dict(), r"layers.0.weight is of shape \(9, 6\) there and of shape \(8, 6\) here"),
        (lambda: Net(batch_norm=True).state_dict(), "holds a different model"),
        (lambda: {}, "layers.0.weight is missing there"),
        (lambda: Net().state_dict() | {"extra": torch.zeros(1)}, r"extra is of shape \(1,\) there and missing here"),
    ],
)
def test_another_models_state_is_refused(state, message):
    with pytest.raises(MisconfigurationError, match=message):
        FederatedModule(Net()).load_state_dict(state())


class Embedding(Net):
    """Has a method, a value and a parameter that callbacks use."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0
        self.scale = torch.nn.Parameter(torch.ones(4))

    def embed(self, inputs):
        return self.layers[0](inputs) / self.temperature


def test_a_callback_finds_the_modules_own_attributes():
    class Uses(Callback):
        def on_validation_end(self, trainer, pl_module):
            inputs = blobs().tensors[0]
            assert torch.equal(pl_module.embed(inputs), pl_module.module.embed(inputs))
            self.found = [pl_module.layers[0].weight, pl_module.scale]

    uses = Uses()
    federated, _ = federate(Embedding(), callbacks=[uses], rounds=1)
    assert uses.found[0] is federated.module.layers[0].weight
    assert uses.found[1] is federated.module.scale


def test_an_attribute_that_a_callback_sets_reaches_the_modules_methods():
    federated = FederatedModule(Embedding())
    inputs = blobs().tensors[0]
    before = federated.embed(inputs)
    federated.temperature = 2.0
    federated.scale = torch.nn.Parameter(torch.zeros(4))
    assert torch.equal(federated.module.embed(inputs), before / 2)
    assert federated.module.scale.sum() == 0


def test_an_attribute_that_nobody_has_is_missing_and_its_error_names_the_users_class():
    federated = FederatedModule(Net())
    assert not hasattr(federated, "embed")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'embed'"):
        federated.embed  # noqa: B018


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_copy_of_a_federated_module_refers_to_its_own_module(duplicate):
    federated = FederatedModule(Embedding())
    copied = duplicate(federated)
    copied.temperature = 5.0
    assert copied.module.temperature == 5.0
    assert federated.temperature == 1.0
    assert copied.scale is copied.module.scale
    assert copied.scale is not federated.scale
    assert identical(dict(copied.state_dict()), dict(federated.state_dict()))


@pytest.mark.filterwarnings("ignore:.*to_torchscript.* has been deprecated")
def test_a_federated_module_can_be_traced():
    federated = FederatedModule(Net())
    inputs = blobs().tensors[0]
    traced = federated.to_torchscript(method="trace", example_inputs=inputs)
    assert torch.equal(traced(inputs), federated(inputs))


@pytest.mark.parametrize("names", ["named_parameters", "named_buffers", "named_modules"])
def test_layers_parameters_and_buffers_have_the_modules_own_names(names):
    module = Net(batch_norm=True)
    assert dict(getattr(FederatedModule(module), names)()) == dict(getattr(module, names)())


def test_training_mode_and_device_are_those_of_the_module():
    federated, _ = federate(Net(batch_norm=True), rounds=1)
    federated.eval()
    assert not federated.training
    assert not federated.module.training
    federated.train()
    assert federated.training
    assert all(layer.training for layer in federated.module.modules())
    federated.to("meta")
    assert federated.device == federated.module.device == torch.device("meta")


def test_the_module_is_in_training_mode_again_after_validation():
    modes = []

    class Watch(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            modes.append((pl_module.training, pl_module.module.training))

    federate(callbacks=[Watch()], rounds=2)
    assert modes == [(True, True)] * 2


def test_the_start_and_the_end_of_the_fit_reach_the_global_model():
    hooks = ("on_fit_start", "on_train_start", "on_train_end", "on_fit_end")

    class Starts(Net):
        def __init__(self):
            super().__init__()
            self.seen = []

    for hook in hooks:
        setattr(Starts, hook, lambda self, hook=hook: self.seen.append((hook, self.trainer.max_epochs)))
    federated, _ = federate(Starts(), rounds=3)
    assert federated.module.seen == [(hook, 3) for hook in hooks]


def test_the_servers_optimiser_has_a_name_that_users_understand():
    _, trainer = federate(rounds=1)
    assert [type(optimizer).__name__ for optimizer in trainer.optimizers] == ["ServerOptimizer"]


def test_hooks_for_batches_do_not_reach_the_global_model():
    class Batches(Net):
        batches = 0

        def on_train_batch_start(self, batch, batch_idx):
            inputs, _ = batch
            self.batches += len(inputs) > 0

    federated, _ = federate(Batches(), rounds=1)
    assert federated.module.batches == 0
