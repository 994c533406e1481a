"""Modules whose training moves state without gradients: nothing that a client changed is lost, and bytes tell it."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import BaseFinetuning
from torch import Tensor, nn
from torch.nn import functional

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAvg
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.state import snapshot
from fl_lightning.data import IID, ClassesPerClient, RandomClients
from fl_lightning.transforms import BernoulliMask
from tests.callbacks.test_server import Keep
from tests.test_equivalence import SameBatches
from tests.test_every_algorithm import ALGORITHMS, SIMILAR, Images, run, run_until_killed, slow_if
from tests.toys import Net, federate, identical, quiet_trainer

#: take the median of what clients change without gradients
ROBUST = ("CoordinateMedian", "TrimmedMean", "Krum", "MultiKrum", "GeometricMedian")


class MeanTeacher(Images):
    """The teacher is a moving average of the student, written through ``data`` as in DINO's code."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(nn.ModuleList([self.conv, self.norm, self.hidden, self.head]))
        self.teacher.requires_grad_(False)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        conv, norm, hidden, head = self.teacher
        maps = functional.relu(norm(conv(batch[0].view(-1, 1, 2, 3))))
        target = head(functional.relu(hidden(maps.flatten(1))))
        return loss + functional.mse_loss(self(batch[0]), target)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        students = [self.conv, self.norm, self.hidden, self.head]
        for student, teacher in zip(students, self.teacher, strict=True):
            for new, average in zip(student.parameters(), teacher.parameters(), strict=True):
                average.data.mul_(0.9).add_(new.data, alpha=0.1)


class Byol(Net):
    """An online network with a predictor, and a target that follows it; the target's weights are replaced."""

    def __init__(self) -> None:
        super().__init__(batch_norm=True)
        self.predictor = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.layers).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        online = self.predictor(self(batch[0]))
        with torch.no_grad():
            target = self.target(batch[0] + 0.01)
        return -functional.cosine_similarity(online, target).mean()

    def on_before_zero_grad(self, optimizer):
        with torch.no_grad():
            for new, average in zip(self.layers.parameters(), self.target.parameters(), strict=True):
                average.data = average.data * 0.99 + new.data * 0.01


class Pruned(Net):
    """Prunes its smallest weights in training; the mask is a boolean buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8, 6, dtype=torch.bool))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(functional.linear(inputs, self.layers[0].weight * self.mask, self.layers[0].bias))
        return self.layers[-1](hidden)

    def on_train_epoch_end(self):
        self.mask.logical_and_(self.layers[0].weight.abs() > 0.05)


class FrozenFirst(Net):
    """Starts with a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].requires_grad_(False)

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class UnfreezeFirst(BaseFinetuning):
    """Unfreezes the layer in the client's second epoch, as Lightning's own fine-tuning callbacks do."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.layers[0])

    def finetune_function(self, pl_module, current_epoch, optimizer):
        if current_epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer, lr=0.05)


#: by name: the module, the client's callback and an entry that training moves without the server's knowledge
MODULES = {
    "mean teacher": (MeanTeacher, [], "teacher.0.weight"),
    "BYOL": (Byol, [], "target.0.weight"),
    "pruned": (Pruned, [], "mask"),
    "unfrozen by a callback": (FrozenFirst, [UnfreezeFirst()], "layers.0.weight"),
    "frozen and unfrozen by a callback": (Net, [UnfreezeFirst()], "layers.0.weight"),
}
each_module = pytest.mark.parametrize("name", MODULES)


def new(name: str):
    torch.manual_seed(3)
    return MODULES[name][0]()


def train(name: str, algorithm: str = "FedAvg", **options):
    return run(algorithm, new(name), callbacks=copy.deepcopy(MODULES[name][1]), epochs=2, **options)


@each_module
def test_a_federation_of_one_client_equals_a_plain_run(name):
    _, callbacks, moved = MODULES[name]
    server = FederatedServer(client=LocalTraining(epochs=2, callbacks=copy.deepcopy(callbacks)))
    federated, _ = federate(new(name), partition=IID(1), server=server, rounds=1)
    plain = new(name)
    start = plain.state_dict()[moved].clone()
    quiet_trainer(max_epochs=2, callbacks=copy.deepcopy(callbacks)).fit(plain, SameBatches(rounds_are_epochs=False))
    assert not torch.equal(plain.state_dict()[moved], start)
    assert identical(dict(federated.state_dict()), dict(plain.state_dict()))


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=slow_if(name in SIMILAR)) for name in ALGORITHMS if "FedMA" not in name],
)
def test_every_algorithm_averages_a_mean_teacher_or_takes_its_median(algorithm):
    keep = Keep()
    train("mean teacher", algorithm, rounds=2, server_callbacks=[keep])
    for updates, end in zip(keep.updates, keep.ends, strict=True):
        weights = [weight for _, weight in updates]
        for name in ("teacher.0.weight", "teacher.1.bias", "teacher.3.weight"):
            rows = np.stack([update.state[name].double().numpy() for update, _ in updates])
            mean, median = np.average(rows, axis=0, weights=weights), np.median(rows, axis=0)
            expected = median if algorithm in ROBUST else mean
            np.testing.assert_allclose(end[name].double(), expected, rtol=1e-6, atol=1e-7)
            assert not torch.equal(updates[0][0].state[name], updates[1][0].state[name])


@pytest.mark.spread(3)
@each_module
@pytest.mark.parametrize("algorithm", ["Scaffold", "FedDyn", "FedNNNN", "FedAdp"])
def test_algorithms_with_memory_and_momentum_train_every_module(name, algorithm):
    start = new(name).state_dict()
    state, _ = train(name, algorithm, rounds=3, selection=RandomClients(count=3), transforms=[BernoulliMask(0.8)])
    assert all(value.isfinite().all() for value in state.values())
    assert not torch.equal(state[MODULES[name][2]], start[MODULES[name][2]])


class OneClientOnly(Net):
    """Changes a frozen parameter and a mask only at clients that hold class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        if (labels == 0).any():
            with torch.no_grad():
                self.centre.copy_(inputs[labels == 0].mean(0))
                self.seen[0] = True
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedAdp"])
def test_two_processes_agree_on_what_changed_even_if_only_one_of_them_saw_it(algorithm):
    # One of four clients holds class 0, and each rank trains two clients.
    options = {"partition": ClassesPerClient(4, 1), "rounds": 3}
    states = []
    for processes in ({"devices": 1}, {"strategy": "ddp_fork", "devices": 2}):
        torch.manual_seed(3)
        states.append(run(algorithm, OneClientOnly(), **options, **processes)[0])
    one, two = states
    assert one["centre"].any()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["mean teacher", "pruned", "unfrozen by a callback"])
def test_two_processes_give_the_same_result_as_one(name):
    options = {"selection": RandomClients(count=3), "partition": ClassesPerClient(7, 2), "rounds": 3}
    one, first = train(name, devices=1, **options)
    two, second = train(name, strategy="ddp_fork", devices=2, **options)
    for entry in one:
        torch.testing.assert_close(one[entry], two[entry], rtol=1e-6, atol=1e-6)
    for tag in ("bytes/up_total", "bytes/down_total"):
        assert first.callback_metrics[tag] == second.callback_metrics[tag]


@pytest.mark.spread(2)
@each_module
def test_a_run_that_is_killed_and_resumed_ends_like_an_uninterrupted_one(name, tmp_path):
    options = {
        "algorithm": "FedAvg",
        "selection": RandomClients(count=3),
        "rounds": 4,
        "epochs": 2,
    }
    whole, whole_trainer = train(name, selection=RandomClients(count=3), rounds=4)
    callbacks = {"callbacks": copy.deepcopy(MODULES[name][1])}
    run_until_killed(2, "client", module=new(name), default_root_dir=tmp_path, **callbacks, **options)
    last = tmp_path / "checkpoints" / "last.ckpt"
    resumed, trainer = run(module=new(name), ckpt_path=last, **callbacks, **options)
    assert identical(whole, resumed)
    assert trainer.callback_metrics == whole_trainer.callback_metrics  # with the bytes sent so far


class Lora(Net):
    """A frozen layer of 250 x 6 and a trainable update of rank 4: 1024 weights, 4 kB."""

    def __init__(self) -> None:
        super().__init__(hidden=250)
        self.layers.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, 6))
        self.up = nn.Parameter(torch.zeros(250, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        first, *others = self.layers
        hidden = first(inputs) + 0.5 * functional.linear(functional.linear(inputs, self.down), self.up)
        return nn.Sequential(*others)(hidden)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedAdp", "FedNNNN"])
def test_lora_uploads_four_kilobytes_and_keeps_the_backbone_bit_for_bit(algorithm):
    keep = Keep()
    module = Lora()
    start = snapshot(module)
    state, trainer = run(algorithm, module, IID(3, sizes="power_law"), rounds=3, server_callbacks=[keep])
    assert {update.num_bytes for updates in keep.updates for update, _ in updates} == {4096}
    assert trainer.callback_metrics["bytes/up_total"] == 3 * 3 * 4096
    moved = {name for name in start if not torch.equal(state[name], start[name])}
    assert moved == {"down", "up"}


def test_the_backbone_is_sent_to_each_client_once():
    whole = sum(value.nbytes for value in Lora().state_dict().values())
    _, trainer = federate(Lora(), partition=IID(3), rounds=4)
    assert trainer.callback_metrics["bytes/down_total"] == 3 * whole + 3 * 3 * 4096


class PlainTeacher(Net):
    """A moving average of linear layers only, so that every entry moves."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.layers).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for average, value in zip(self.teacher.parameters(), self.layers.parameters(), strict=True):
            average.data.lerp_(value.data, 0.1)


def test_a_mean_teacher_is_sent_in_both_directions():
    keep = Keep()
    _, trainer = federate(PlainTeacher(), partition=IID(3), rounds=2, callbacks=[keep])
    whole = sum(value.nbytes for value in PlainTeacher().state_dict().values())
    assert {update.num_bytes for updates in keep.updates for update, _ in updates} == {whole}
    assert trainer.callback_metrics["bytes/down_total"] == 2 * 3 * whole


def test_a_mask_saves_the_same_number_of_bytes_with_a_backbone():
    server = FederatedServer(FedAvg(), transforms=[BernoulliMask(0.5)])
    keep = Keep()
    federate(Lora(), partition=IID(2), rounds=1, server=server, callbacks=[keep])
    for update, _ in keep.updates[0]:
        kept = int(BernoulliMask(0.5).mask(1024, 0, update.client).sum())
        assert update.num_bytes == 4 * kept


class UnfreezeInRound(Callback):
    """Unfreezes the first layer of the global model."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.module.layers[0].requires_grad_(trainer.current_epoch >= 1)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedNNNN", "Scaffold", "FedDyn", "FedAdp"])
@pytest.mark.parametrize("optimizer", [None, lambda parameters: torch.optim.Adam(parameters, lr=0.01)])
def test_clients_train_a_layer_that_a_callback_of_the_server_unfreezes(algorithm, optimizer):
    keep = Keep()
    module = FrozenFirst()
    run(algorithm, module, rounds=3, optimizer=optimizer, server_callbacks=[UnfreezeInRound(), keep])
    first = [start["layers.0.weight"] for start in keep.starts] + [keep.ends[-1]["layers.0.weight"]]
    assert [torch.equal(before, after) for before, after in pairwise(first)] == [True, False, False]


class AddGroup(BaseFinetuning):
    """Unfreezes the first layer of the global model and gives it to the server's optimiser."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.module.layers[0])

    def finetune_function(self, pl_module, current_epoch, optimizer):
        if current_epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.module.layers[0], optimizer, lr=1.0)


def test_parameters_that_are_added_to_the_servers_optimiser_are_installed_where_they_belong():
    keep = Keep()
    run("FedAvg", FrozenFirst(), rounds=3, server_callbacks=[AddGroup(), keep])
    for updates, end in zip(keep.updates, keep.ends, strict=True):
        total = sum(weight for _, weight in updates)
        for name in end:
            mean = sum(weight / total * update.state[name].double() for update, weight in updates)
            torch.testing.assert_close(end[name].double(), mean, rtol=1e-6, atol=1e-7)
