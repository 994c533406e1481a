"""Clients that train at once end like clients with a Trainer each, up to float rounding."""

import pytest
import torch
from pytorch_lightning import LightningDataModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import LocalTraining
from fl_lightning.callbacks import CosineAnnealing, FederatedServer, LearningRateDecay, NormDiagnostics
from fl_lightning.client.vectorized.step import ClientStep
from fl_lightning.data import IID, Dirichlet, RandomClients
from fl_lightning.data.sources.images import crop_and_flip
from tests.test_every_algorithm import each_algorithm, fitting_model, run
from tests.toys import Net, blobs, federate

PARTITIONS = {"equal": IID(4), "ragged": Dirichlet(4, alpha=0.5)}
each_partition = pytest.mark.parametrize("partition", PARTITIONS)
#: clients of equal size need less of the code, so a large matrix has them only in the slow tests
mostly_ragged = pytest.mark.parametrize("partition", [pytest.param("equal", marks=pytest.mark.slow), "ragged"])


def largest_difference(first, second) -> float:
    assert first.keys() == second.keys()
    return max((first[name].double() - second[name].double()).abs().max().item() for name in first)


def end(execution, make_module, partition=None, rounds=2, source=None, selection=None, callbacks=(), **client):
    """Return the final state of a run."""
    torch.manual_seed(0)
    server = FederatedServer(client=LocalTraining(callbacks=list(callbacks), execution=execution, **client))
    module, _ = federate(make_module(), source, partition or IID(4), selection, server, rounds=rounds)
    return {name: value.clone() for name, value in module.state_dict().items()}


def states(make_module, *arguments, **options):
    """Return the final states with a Trainer per client and with all clients at once."""
    return [end(execution, make_module, *arguments, **options) for execution in ("trainer", "vectorized")]


@pytest.mark.spread(3)
@mostly_ragged
@each_algorithm
def test_every_algorithm(algorithm, partition):
    ends = [
        run(
            algorithm,
            fitting_model(algorithm),
            PARTITIONS[partition],
            RandomClients(count=3),
            epochs=2,
            rounds=2,
            client={"execution": execution},
        )
        for execution in ("trainer", "vectorized")
    ]
    assert largest_difference(ends[0][0], ends[1][0]) < 2e-6
    first, second = (end[1].callback_metrics for end in ends)
    assert first.keys() == second.keys()
    for name in first:
        assert float(second[name]) == pytest.approx(float(first[name]), rel=1e-4, abs=1e-5), name


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov and decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


class Configurable(Net):
    """A module with any optimiser and scheduler."""

    def __init__(self, optimizer=OPTIMIZERS["momentum"], scheduler=None, interval="epoch", **arguments):
        super().__init__(**arguments)
        self.make_optimizer, self.make_scheduler, self.interval = optimizer, scheduler, interval

    def configure_optimizers(self):
        optimizer = self.make_optimizer(self.parameters())
        if self.make_scheduler is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.make_scheduler(optimizer), "interval": self.interval},
        }


@mostly_ragged
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer, partition):
    ends = states(lambda: Configurable(OPTIMIZERS[optimizer]), PARTITIONS[partition], epochs=2)
    assert largest_difference(*ends) < 1e-5


@each_partition
def test_batch_norm_with_momentum(partition):
    # Not with Adam: the bias before BatchNorm has no gradient but rounding errors, which Adam would scale up.
    ends = states(lambda: Configurable(batch_norm=True), PARTITIONS[partition], epochs=2)
    assert largest_difference(*ends) < 1e-5


@each_partition
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_each_client_clips_its_own_gradient(algorithm, partition):
    flags = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    assert largest_difference(*states(Configurable, PARTITIONS[partition], epochs=2, **flags)) < 1e-6


@each_partition
@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_the_modules_scheduler_and_the_schedules_of_callbacks(interval, partition):
    def module():
        return Configurable(scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7), interval=interval)

    schedules = [CosineAnnealing(), LearningRateDecay(0.9)]
    assert largest_difference(*states(module, PARTITIONS[partition], epochs=3, callbacks=schedules)) < 1e-6


class Unused(Configurable):
    """A module with a layer that its loss does not use."""

    def __init__(self):
        super().__init__(OPTIMIZERS["AdamW"])
        self.unused = nn.Linear(3, 3)


def test_weight_decay_does_not_move_what_the_loss_does_not_use():
    torch.manual_seed(0)
    before = Unused().unused.weight.clone()
    trainers, vectorized = states(Unused)
    assert torch.equal(vectorized["unused.weight"], before)
    assert largest_difference(trainers, vectorized) < 1e-6


class Tied(Net):
    """Two layers that share their weight."""

    def __init__(self):
        super().__init__(hidden=6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.layers[0].weight

    def forward(self, inputs):
        return self.layers[3](self.again(self.layers[0](inputs)))


class Recurrent(Net):
    """An LSTM over the six features."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, inputs):
        return self.head(self.lstm(inputs.unsqueeze(2))[0][:, -1])


class Attention(Net):
    """A transformer layer over the six features."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, inputs):
        return self.head(self.encoder(self.embed(inputs.unsqueeze(2))).mean(1))


class Normalised(Net):
    """GroupNorm and LayerNorm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))


class Indexed(Net):
    """A training step that depends on the number of its batch."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + batch_idx % 2)


@mostly_ragged
@pytest.mark.parametrize("module", [Tied, Recurrent, Attention, Normalised, Indexed])
def test_every_kind_of_module(module, partition):
    assert largest_difference(*states(module, PARTITIONS[partition], rounds=1, epochs=2)) < 1e-6


class Samples(Dataset):
    """Samples that are dictionaries, not rows of tensors."""

    def __init__(self):
        self.inputs, self.targets = blobs().tensors

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return {"input": self.inputs[index], "label": self.targets[index]}


class OfDictionaries(Net):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch["input"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))


class SampleSource(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Samples(), batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Samples(), batch_size=50)


@each_partition
def test_data_that_is_not_held_as_tensors(partition):
    assert largest_difference(*states(OfDictionaries, PARTITIONS[partition], source=SampleSource(), epochs=2)) < 1e-6


class Augmented(LightningDataModule):
    """Crops and flips training images at random, on their way to the module."""

    def train_dataloader(self):
        images = torch.randint(256, (60, 1, 2, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return DataLoader(TensorDataset(images, torch.arange(60) % 4), batch_size=8, shuffle=True)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [crop_and_flip(batch[0]).flatten(1) / 255, batch[1]]


@each_partition
def test_each_client_draws_its_own_random_transforms(partition):
    assert largest_difference(*states(Net, PARTITIONS[partition], source=Augmented(), epochs=2)) < 1e-6


@each_partition
def test_the_size_of_a_chunk_does_not_matter(partition):
    ends = [end("vectorized", Configurable, PARTITIONS[partition], epochs=2, chunk=chunk) for chunk in (1, 3, None)]
    assert largest_difference(ends[0], ends[1]) < 1e-6
    assert largest_difference(ends[0], ends[2]) < 1e-6


def test_a_step_that_runs_often_is_recorded():
    step = ClientStep(Net())
    parameters = {name: value.detach().expand(3, *value.shape).clone() for name, value in Net().named_parameters()}
    batch = [torch.randn(3, 5, 6), torch.randint(4, (3, 5))]
    for _ in range(30):
        step(parameters, {}, {}, batch, 0)
    assert not step._recordings
    step(parameters, {}, {}, batch, 0)
    assert len(step._recordings) == 1


@each_partition
def test_mixed_precision(partition):
    """Both executions differ from float32, and from each other by less than that, because they sum in other orders."""
    trainers, vectorized = states(Net, PARTITIONS[partition], epochs=2, precision="bf16-mixed")
    exact = end("vectorized", Net, PARTITIONS[partition], epochs=2)
    assert 1e-5 < largest_difference(exact, vectorized) < 1e-2
    assert largest_difference(trainers, vectorized) < 2e-3


def test_a_cohort_of_two_hundred_clients():
    trainers, vectorized = states(Net, IID(200), rounds=1, source=Many())
    assert largest_difference(trainers, vectorized) < 1e-6


class Many(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(blobs(400), batch_size=8, shuffle=True)


def test_diagnostics_see_the_same_updates():
    metrics = []
    for execution in ("trainer", "vectorized"):
        server = FederatedServer(client=LocalTraining(execution=execution))
        torch.manual_seed(0)
        _, trainer = federate(Net(), server=server, callbacks=[NormDiagnostics()])
        metrics.append({name: float(value) for name, value in trainer.callback_metrics.items()})
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
