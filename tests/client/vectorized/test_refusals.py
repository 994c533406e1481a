"""What cannot be vectorised is refused by name, or falls back and says why."""

import pytest
import torch
from pytorch_lightning import Callback, LightningDataModule
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from fl_lightning import LocalTraining
from fl_lightning.callbacks import ClientCallback, FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from tests.client.vectorized.test_equality import OfDictionaries, Samples
from tests.test_every_algorithm import Images
from tests.toys import Blobs, Net, federate


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class Branches(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if loss > 0 else -loss


class ReadsValue(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + 0 * loss.item())


class ReadsEpoch(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch)


class ReadsTrainer(Net):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.max_epochs)


class Hooked(Net):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


class Counts(Net):
    steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return super().training_step(batch, batch_idx)


class Collects(Net):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        self.losses.append(0)
        return super().training_step(batch, batch_idx)


class CountsInPlace(Net):
    def __init__(self):
        super().__init__()
        self.steps = {"taken": 0}
        self.total = torch.zeros(1)

    def training_step(self, batch, batch_idx):
        self.steps["taken"] += 1
        return super().training_step(batch, batch_idx)


class AddsInPlace(CountsInPlace):
    def training_step(self, batch, batch_idx):
        self.total += 1
        return Net.training_step(self, batch, batch_idx)


class ChangesLayer(Net):
    def training_step(self, batch, batch_idx):
        self.layers[1].inplace = True
        return super().training_step(batch, batch_idx)


class Measures(Net):
    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.mean.update(loss.detach())
        return loss


class Curvature(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Two(Net):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.layers[0].parameters(), 0.1), torch.optim.SGD(self.layers[3].parameters(), 0.1)]


class Plateau(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
                "monitor": "train_loss_of_client",
            },
        }


class Cumulative(Net):
    def __init__(self):
        super().__init__()
        self.layers[1] = nn.BatchNorm1d(8, momentum=None)


class TensorRate(Net):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=torch.tensor(0.01))


class Foreign(Net):
    def configure_optimizers(self):
        return torch.optim.SGD([*self.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)


class Clips(Net):
    def clip_gradients(self, *arguments, **options):
        pass


class Remembers(Net):
    last = None

    def training_step(self, batch, batch_idx):
        self.last = super().training_step(batch, batch_idx).detach()
        return super().training_step(batch, batch_idx)


class SkipsSmall(Net):
    """Skips small batches, which the first batch of the first client is not."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if len(batch[0]) > 7 else None


class FreezesOne(ClientCallback):
    def frozen(self, module):
        return ["layers.0.weight"] if self.client == 1 else []


class RateOfItsOwn(ClientCallback):
    def on_client_start(self, module, optimizers):
        optimizers[0].param_groups[0]["lr"] = 0.1 + self.client


class Watcher(Callback):
    pass


class Clocked(ClientCallback):
    def on_train_epoch_start(self, trainer, pl_module):
        pass


def fit(module, execution="vectorized", **client):
    server = FederatedServer(client=LocalTraining(execution=execution, **client))
    return federate(module, Blobs(batch_size=8), server=server)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Manual, "Manual optimises manually"),
        (Branches, "the training step of Branches reads the value of a tensor, for example by .item() or in an if"),
        (ReadsValue, "the training step of ReadsValue reads the value of a tensor"),
        (ReadsEpoch, "the training step of ReadsEpoch reads self.current_epoch"),
        (ReadsTrainer, "configure_optimizers of ReadsTrainer reads self.trainer"),
        (Hooked, "Hooked has on_train_batch_end, which only a Trainer calls"),
        (Counts, "the training step of Counts changes self.steps"),
        (Collects, "the training step of Collects changes self.losses"),
        (CountsInPlace, "the training step of CountsInPlace changes self.steps"),
        (AddsInPlace, "the training step of AddsInPlace changes self.total"),
        (ChangesLayer, "the training step of ChangesLayer changes self.layers.1.inplace"),
        (Measures, "the training step of Measures"),
        (Curvature, "LBFGS does not treat every entry of a parameter alike"),
        (Two, "there are 2 optimisers, not one"),
        (Plateau, "ReduceLROnPlateau does not step after every epoch or every batch"),
        (Cumulative, "the training step of Cumulative reads the value of a tensor"),
        (TensorRate, "the learning rate is a tensor, not a number"),
        (Foreign, "the optimiser has a parameter that Foreign does not have"),
        (Clips, "Clips has clip_gradients, which only a Trainer calls"),
        (Remembers, "the training step of Remembers changes self.last"),
        (SkipsSmall, "the training step of SkipsSmall returns no loss"),
        (lambda: Net(dropout=0.5), "the training step of Net draws random numbers, for example in dropout"),
    ],
)
def test_modules_are_refused_by_name(module, reason):
    with pytest.raises(MisconfigurationError) as error:
        fit(module())
    assert reason in str(error.value)
    assert str(error.value).startswith("client.execution=vectorized, but ")
    assert str(error.value).endswith(": set client.execution to trainer")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ({"callbacks": [Watcher()]}, "Watcher is a callback of Lightning, which only a Trainer calls"),
        ({"callbacks": [Clocked()]}, "Clocked has on_train_epoch_start, which only a Trainer calls"),
        ({"callbacks": [FreezesOne()]}, "a callback freezes different parameters for different clients"),
        ({"callbacks": [RateOfItsOwn()]}, "a callback gives clients different settings of the optimiser"),
        ({"accumulate_grad_batches": 2}, "client.accumulate_grad_batches needs a Trainer per client"),
        ({"precision": "64-true"}, "client.precision=64-true needs a Trainer; 32-true and bf16-mixed do not"),
    ],
)
def test_callbacks_and_flags_are_refused_by_name(client, reason):
    with pytest.raises(MisconfigurationError, match=reason):
        fit(Net(), **client)


class WithWorkers(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Samples(), batch_size=8, shuffle=True, num_workers=1)


def test_a_loader_with_workers_is_refused():
    with pytest.raises(MisconfigurationError, match="the source's loader has workers, which load the batches of one"):
        federate(OfDictionaries(), WithWorkers(), server=FederatedServer(client=LocalTraining(execution="vectorized")))


def test_auto_falls_back_and_says_why(caplog):
    caplog.set_level("INFO")
    fit(Net(dropout=0.5), "auto")
    assert caplog.text.count("Clients train one after another, because the training step of Net draws random") == 1


class LargeImages(Images):
    def __init__(self):
        super().__init__()
        self.unused = nn.Conv2d(20, 21, 5)


def test_auto_trains_large_convolutions_one_after_another_on_a_cpu(caplog):
    caplog.set_level("INFO")
    fit(LargeImages(), "auto")
    assert (
        "Clients train one after another, because unused has 10500 weights, and stacking large convolutions gains"
        " nothing on a CPU" in caplog.text
    )


@pytest.mark.parametrize("module", [Net, Images])
def test_auto_vectorises_what_it_can(module, caplog):
    caplog.set_level("INFO")
    fit(module(), "auto")
    assert "one after another" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"execution": "gpu"}, "execution='gpu': set client.execution to trainer, vectorized or auto"),
        ({"chunk": 0}, "chunk=0: set client.chunk to 1 or more"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(MisconfigurationError, match=message):
        LocalTraining(**arguments)
