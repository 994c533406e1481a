import copy
import functools
import pickle
import random
from typing import ClassVar

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback
from torch import nn
from torchmetrics import MeanMetric

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.callbacks import ClientCallback, ClientEvaluation, FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.data import IID
from tests.toys import Blobs, Net, blobs, federate, identical


class Leaky(Net):
    """Keeps Python state that changes how it trains, as real modules sometimes do by accident."""

    def __init__(self) -> None:
        super().__init__(batch_norm=True, dropout=0.4, momentum=0.9)
        self.seen = 0
        self.history: list[float] = []
        self.metric = MeanMetric()

    def training_step(self, batch, batch_idx):
        self.seen += 1
        loss = super().training_step(batch, batch_idx)
        self.metric.update(loss)
        self.history.append(loss.item())
        noise = random.random() + float(np.random.rand())
        return (
            loss * (1 + 0.1 * self.seen) + 0.01 * sum(self.history) * loss + 0.1 * noise * loss * self.metric.compute()
        )

    def on_train_end(self):
        self.layers[0].eval()


def prepared(module=None, source=None, partition=None, **flags):
    module = module or Net()
    data = FederatedDataModule(
        source or Blobs(batch_size=8), partition=IID(4) if partition is None else partition or None, seed=3
    )
    data.setup("fit")
    training = LocalTraining(**flags)
    training.prepare(module, data)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    return training, Round(number=0, num_rounds=5, seed=3, start=start)


def test_the_order_of_clients_changes_no_update():
    training, round_ = prepared(Leaky(), epochs=2)
    forward = {update.client: update for update in training.train_cohort([0, 1, 2, 3], round_)}
    backward = {update.client: update for update in training.train_cohort([3, 1, 0, 2], round_)}
    alone = {client: next(training.train_cohort([client], round_)) for client in range(4)}
    for client in range(4):
        assert identical(forward[client].state, backward[client].state)
        assert identical(forward[client].state, alone[client].state)
    assert not identical(forward[0].state, forward[1].state)


def test_the_global_generators_are_left_as_they_were():
    training, round_ = prepared(Net(dropout=0.5))
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    list(training.train_cohort([0, 1], round_))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
    assert random.random() == expected[2]


def test_an_update_reports_its_samples_steps_learning_rate_bytes_and_loss():
    training, round_ = prepared(epochs=3, batch_size=7)
    update = next(training.train_cohort([2], round_))
    assert update.client == 2
    assert update.num_samples == 30
    assert update.num_steps == 3 * 5
    assert update.learning_rate == 0.1
    assert int(update.class_counts.sum()) == 30
    assert update.num_bytes == sum(value.nbytes for value in update.state.values())
    assert 0 < float(update.metrics["loss"]) < 10


def test_the_reported_loss_is_the_mean_over_the_steps():
    losses = []

    class Spy(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            losses.append(outputs["loss"].item())

        def __deepcopy__(self, memo):
            return self

    training, round_ = prepared(callbacks=[Spy()])
    update = next(training.train_cohort([0], round_))
    assert float(update.metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_client_callbacks_see_client_and_round_and_are_fresh():
    seen = []

    class Watch(ClientCallback):
        def __init__(self):
            self.fits = 0

        def on_fit_start(self, trainer, pl_module):
            self.fits += 1
            seen.append((self.client, self.round.number, self.round.num_rounds, self.local_training.epochs, self.fits))

    training, round_ = prepared(callbacks=[Watch()], epochs=2)
    list(training.train_cohort([3, 1], round_))
    assert seen == [(3, 0, 5, 2, 1), (1, 0, 5, 2, 1)]


def test_trainer_flags_reach_the_client():
    clipped, round_ = prepared(gradient_clip_val=1e-6)
    update = next(clipped.train_cohort([0], round_))
    moved = max((update.state[name] - value).abs().max().item() for name, value in round_.start.items())
    assert 0 < moved < 1e-5


def test_setup_and_configured_callbacks_do_not_run_again_per_client():
    class Once(Net):
        calls = 0

        def setup(self, stage):
            type(self).calls += 1

        def configure_callbacks(self):
            raise AssertionError("a client asked for callbacks")

    training, round_ = prepared(Once())
    list(training.train_cohort([0, 1], round_))
    assert Once.calls == 0


def test_the_client_sees_the_source_and_its_batch_hooks():
    class Doubling(Blobs):
        factor = 2.0

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [self.factor * batch[0], batch[1]]

    class Curious(Net):
        def training_step(self, batch, batch_idx):
            assert isinstance(self.trainer.datamodule, Doubling)
            assert (batch[0].abs() > 1.9 * blobs().tensors[0].abs().min()).all()
            return super().training_step(batch, batch_idx)

    training, round_ = prepared(Curious(), source=Doubling())
    plain, _ = prepared(Net(), source=Blobs())
    first = next(training.train_cohort([0], round_))
    second = next(plain.train_cohort([0], round_))
    assert not identical(first.state, second.state)


def test_batch_norm_never_gets_a_batch_of_one():
    training, round_ = prepared(Net(batch_norm=True), source=Blobs(36, batch_size=4), partition=IID(4))  # 9 = 4 + 5
    assert next(training.train_cohort([0], round_)).num_steps == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalTraining(epochs=0), "epochs=0"),
        (lambda: LocalTraining(batch_size=0), "batch_size=0"),
        (lambda: prepared(Net(batch_norm=True), batch_size=1), "batch_size=1, but BatchNorm"),
        (lambda: prepared(Net(batch_norm=True), source=[blobs(1), blobs(9)], partition=False), "client 0 has a single"),
    ],
)
def test_a_client_that_cannot_train_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_epochs": 3}, r"max_epochs cannot be set .* use client\.epochs"),
        ({"nonsense": 1}, "nonsense cannot be set"),
        ({"logger": True}, "logger cannot be set"),
        ({"strategy": "ddp"}, "strategy cannot be set"),
    ],
)
def test_flags_that_a_client_cannot_have_are_refused_at_once(flags, message):
    with pytest.raises(MisconfigurationError, match=message):
        LocalTraining(**flags)


def test_freezing_a_parameter_does_not_affect_the_next_client():
    class Freezes(Net):
        def on_train_end(self):
            self.layers[0].weight.requires_grad_(False)

    training, round_ = prepared(Freezes())
    plain, _ = prepared(Net())
    for first, second in zip(
        training.train_cohort([0, 1, 2], round_), plain.train_cohort([0, 1, 2], round_), strict=True
    ):
        assert identical(first.state, second.state)


def test_a_lazy_model_is_refused():
    class Lazy(Net):
        def __init__(self):
            super().__init__()
            self.lazy = torch.nn.LazyLinear(2)

    data = FederatedDataModule(Blobs(), partition=IID(2))
    data.setup("fit")
    with pytest.raises(MisconfigurationError, match=r"lazy\.weight of Lazy is lazy"):
        LocalTraining().prepare(Lazy(), data)


def test_tied_weights_are_sent_once():
    class Tied(Net):
        def __init__(self):
            super().__init__(hidden=6)
            self.twin = torch.nn.Linear(6, 6)
            self.twin.weight = self.layers[0].weight

    training, round_ = prepared(Tied())
    update = next(training.train_cohort([0], round_))
    assert update.num_bytes == 4 * (36 + 6 + 6 + 24 + 4)


def test_a_client_does_not_copy_what_its_optimiser_refers_to():
    class Uncopyable:
        def __call__(self, parameters, owner):
            return torch.optim.SGD(parameters, lr=0.1)

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    class Configured(Net):
        """A module as the command line makes it: its optimiser is a partial that refers to everything else."""

        def __init__(self) -> None:
            super().__init__()
            make = Uncopyable()
            self.optimizer = functools.partial(make, owner=make)

        def configure_optimizers(self):
            return self.optimizer(self.parameters())

    federated, _ = federate(Configured(), callbacks=[ClientEvaluation()], rounds=2)
    assert all(value.isfinite().all() for value in federated.state_dict().values())


def test_a_partial_over_the_module_itself_trains_the_client():
    class Bound(Net):
        def __init__(self) -> None:
            super().__init__()
            self.step = functools.partial(Net.training_step, self)

        def training_step(self, batch, batch_idx):
            return self.step(batch, batch_idx)

    def train(module):
        torch.manual_seed(0)
        federated, _ = federate(module(), rounds=2)
        return dict(federated.state_dict())

    assert identical(train(Bound), train(Net))


class Registered(Net):
    """Notes its subclasses, and copies itself in training as users' callbacks do."""

    subclasses: ClassVar[list] = []
    copies: ClassVar[list] = []

    def __init_subclass__(cls, required: int, **kwargs):
        Registered.subclasses.append(cls)

    def on_train_epoch_end(self):
        self.copies.append(copy.deepcopy(self))
        self.copies.append(pickle.loads(pickle.dumps(self)))


def test_a_client_registers_no_class_and_its_copies_have_the_users_own():
    federate(Registered(), rounds=1, partition=IID(1))
    assert Registered.subclasses == []
    assert [type(copied) for copied in Registered.copies] == [Registered, Registered]


class Convolution(Net):
    """A convolution over the six features as a 2 x 3 image."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (2, 1, 3)),
            nn.Conv2d(2, 4, (1, 2)),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 4),
        )


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_channels_last_changes_results_by_rounding_only(execution):
    ends = []
    for memory_format in ("contiguous", "channels_last"):
        torch.manual_seed(0)
        client = LocalTraining(epochs=2, memory_format=memory_format, execution=execution)
        module, _ = federate(Convolution(), server=FederatedServer(client=client))
        ends.append(module.state_dict())
        assert module.module.layers[1].weight.is_contiguous(memory_format=FORMATS[memory_format])
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=1e-5)


class Volumes(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 1, 2, 3)), nn.Conv3d(1, 4, (1, 2, 2)), nn.Flatten(), nn.Linear(8, 4)
        )


def test_channels_last_leaves_convolutions_of_volumes_as_they_are():
    server = FederatedServer(client=LocalTraining(memory_format="channels_last"))
    module, _ = federate(Volumes(), server=server)
    assert module.module.layers[1].weight.is_contiguous()


def test_an_unknown_memory_format_is_refused():
    with pytest.raises(MisconfigurationError, match=r"set client\.memory_format to contiguous or channels_last"):
        LocalTraining(memory_format="nhwc")
