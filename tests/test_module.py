import pytest
import torch
from pytorch_lightning import LightningModule
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


def test_callbacks_of_the_module_see_the_rounds():
    from pytorch_lightning.callbacks import EarlyStopping

    class Stops(Net):
        def configure_callbacks(self):
            return [EarlyStopping("val_loss", mode="max", patience=1)]

    _, trainer = federate(Stops(), rounds=30)
    assert trainer.current_epoch < 30
