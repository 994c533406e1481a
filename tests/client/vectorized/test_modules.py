"""Unusual modules, optimisers, batches and data: clients that train at once end like clients with a Trainer each."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fl_lightning.callbacks import ClientCallback
from fl_lightning.data import IID, Dirichlet
from fl_lightning.data.sources import MNIST
from tests.client.test_training import prepared
from tests.client.vectorized.test_equality import Configurable, end, largest_difference, states
from tests.data.files import write_mnist
from tests.toys import Net, blobs

RAGGED = Dirichlet(4, alpha=0.5)


class ReturnsDictionary(Net):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "size": len(batch[0])}


class WithoutIndex(Net):
    def training_step(self, batch):
        return functional.cross_entropy(self(batch[0]), batch[1])


class AnyArguments(Net):
    def training_step(self, *arguments):
        return super().training_step(*arguments) * (1 + arguments[1])


class Scaled(Net):
    """Scales by a buffer that is not saved and that every step changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def training_step(self, batch, batch_idx):
        self.scale.mul_(0.9)
        return super().training_step(batch, batch_idx) * self.scale


class Double(Net):
    def __init__(self):
        super().__init__()
        self.layers.double()

    def forward(self, inputs):
        return self.layers(inputs.double())


class Frozen(Net):
    """Has a frozen layer, which the command line's users know from fine-tuning."""

    def __init__(self):
        super().__init__(momentum=0.9)
        self.layers[0].requires_grad_(False)


@pytest.mark.parametrize("module", [ReturnsDictionary, WithoutIndex, AnyArguments, Scaled, Double, Frozen])
def test_every_form_of_training_step(module):
    assert largest_difference(*states(module, RAGGED, epochs=2)) < 1e-6


def grouped(module):
    first, last = module.layers[0], module.layers[-1]
    return torch.optim.SGD([{"params": first.parameters(), "lr": 0.01}, {"params": last.parameters()}], lr=0.2)


OPTIMIZERS = {
    "groups with different rates": grouped,
    "maximize": lambda module: torch.optim.SGD(module.parameters(), lr=1e-3, maximize=True),
    "fused": lambda module: torch.optim.Adam(module.parameters(), lr=0.01, fused=True),
    "foreach": lambda module: torch.optim.Adam(module.parameters(), lr=0.01, foreach=True),
    "one at a time": lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=False),
    "only the last layer": lambda module: torch.optim.SGD(module.layers[-1].parameters(), lr=0.1),
}


class Optimized(Net):
    def __init__(self, optimizer, **arguments):
        super().__init__(**arguments)
        self.make_optimizer = optimizer

    def configure_optimizers(self):
        return self.make_optimizer(self)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_setting_of_an_optimiser(optimizer):
    flags = {"gradient_clip_val": 0.1}  # of the parameters that the optimiser has
    ends = states(lambda: Optimized(OPTIMIZERS[optimizer]), RAGGED, epochs=2, **flags)
    assert largest_difference(*ends) < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_clipped_alike(value):
    """The loss of a client with a bad sample is not finite. The other clients are not affected."""
    inputs, labels = blobs().tensors
    inputs[5] = value

    class Bad(LightningDataModule):
        def train_dataloader(self):
            return DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=8, shuffle=True)

    ends = []
    for execution in ("trainer", "vectorized"):
        torch.manual_seed(0)
        training, round_ = prepared(source=Bad(), execution=execution, gradient_clip_val=0.1)
        ends.append([update.state for update in training.train_cohort(range(4), round_)])
    spoilt = []
    for one, other in zip(*ends, strict=True):
        assert all(torch.equal(one[name].isnan(), other[name].isnan()) for name in one)
        spoilt.append(any(value.isnan().any() for value in one.values()))
    assert sorted(spoilt) == [False, False, False, True]


@dataclass
class Labelled:
    inputs: Tensor
    labels: Tensor


torch.utils._pytree.register_dataclass(Labelled)


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


class TakesObjects(Net):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch.inputs), batch.labels)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch


class Objects(LightningDataModule):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def train_dataloader(self):
        def collate(samples):
            return self.make(torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples]))

        return DataLoader(blobs(), batch_size=8, shuffle=True, collate_fn=collate)


@pytest.mark.parametrize("make", [Labelled, Pair])
def test_batches_that_are_objects(make):
    assert largest_difference(*states(TakesObjects, RAGGED, source=Objects(make), epochs=2)) < 1e-6


class Flat(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def test_images_that_are_augmented(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    ends = states(Flat, IID(3), source=MNIST(str(tmp_path), batch_size=8, augment=True), epochs=2)
    assert largest_difference(*ends) < 1e-5


class HalvesRate(ClientCallback):
    """Changes the optimiser when a client starts, which must not add up over the clients."""

    def on_client_start(self, module, optimizers):
        for group in optimizers[0].param_groups:
            group["lr"] *= 0.5


class DrawsAtStart(ClientCallback):
    """Sends a number that it draws when the client starts, which must be the client's own."""

    drawn: ClassVar[dict[int, list[float]]] = {}

    def on_client_start(self, module, optimizers):
        self.number = torch.rand(())

    def on_upload(self, update):
        self.drawn.setdefault(self.client, []).append(float(self.number))


def test_a_callback_changes_the_optimiser_of_every_client():
    assert largest_difference(*states(Configurable, RAGGED, callbacks=[HalvesRate()], epochs=2)) < 1e-6


def test_what_a_callback_draws_when_a_client_starts_depends_on_the_client_only():
    DrawsAtStart.drawn.clear()
    for chunk in (1, 3):
        end("vectorized", Net, IID(3), rounds=1, callbacks=[DrawsAtStart()], chunk=chunk)
    assert all(one == two for one, two in DrawsAtStart.drawn.values())
    assert len({one for one, _ in DrawsAtStart.drawn.values()}) == 3
