"""What client callbacks remember: it belongs to one client, survives what it must, and is never half written."""

import gc
import weakref
from functools import partial
from typing import ClassVar

import pytest
import torch
from pytorch_lightning.callbacks import OnExceptionCheckpoint
from torchmetrics import MeanMetric

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedBN, FedDyn, Scaffold
from fl_lightning.callbacks import ClientCallback, FederatedServer
from fl_lightning.client import training
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError
from fl_lightning.data import IID
from fl_lightning.transforms import BernoulliMask
from tests.callbacks.test_server import Keep
from tests.toys import Net, federate, identical


def run(client_callbacks=None, aggregator=None, folder=None, batch_norm=False, transforms=None, **options):
    torch.manual_seed(0)
    client = LocalTraining(callbacks=client_callbacks)
    server = FederatedServer(aggregator, client=client, client_folder=folder, transforms=transforms)
    federated, trainer = federate(Net(batch_norm=batch_norm), server=server, **options)
    return dict(federated.state_dict()), trainer


class Weights(ClientCallback):
    """Remembers the parameter itself, which is the same tensor for every client."""

    seen: dict = {}  # noqa: RUF012  shared on purpose: callbacks are copied

    def on_train_start(self, trainer, pl_module):
        if self.memory:
            self.seen[self.client] = self.memory["weight"].clone()

    def on_train_end(self, trainer, pl_module):
        self.memory = {"weight": pl_module.layers[0].weight}


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_remembered_parameter_is_the_clients_own(in_folder, tmp_path):
    Weights.seen.clear()
    keep = Keep()
    run([Weights()], folder=str(tmp_path / "clients") if in_folder else None, callbacks=[keep], rounds=2)
    first = {update.client: update.state["layers.0.weight"] for update, _ in keep.updates[0]}
    assert identical(Weights.seen, first)


class Once(ClientCallback):
    """Remembers something in the first round and forgets it in the second."""

    seen: list = []  # noqa: RUF012

    def on_upload(self, update):
        self.seen.append((self.round.number, sorted(self.memory)))
        self.memory = {"mark": torch.ones(1)} if self.round.number == 0 else {}


def test_an_emptied_memory_stays_empty():
    Once.seen.clear()
    run([Once()], rounds=3, partition=IID(1))
    assert Once.seen == [(0, []), (1, ["mark"]), (2, [])]


class Add(ClientCallback):
    """Counts its client's rounds in steps of its own."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_upload(self, update):
        self.memory = {"total": self.memory.get("total", torch.zeros(())) + self.step}


@pytest.mark.parametrize("in_folder", [False, True])
def test_two_callbacks_of_one_class_do_not_share_their_memory(in_folder, tmp_path):
    folder = str(tmp_path / "clients") if in_folder else None
    _, trainer = run([Add(1), Add(100)], folder=folder, rounds=3)
    store = trainer.lightning_module.server.store
    assert [store.get("Add", client)["total"].item() for client in range(4)] == [3] * 4
    assert [store.get("Add #2", client)["total"].item() for client in range(4)] == [300] * 4


def test_a_run_without_a_folder_can_be_resumed_with_one(tmp_path):
    whole, _ = run(aggregator=Scaffold(), rounds=4)
    _, trainer = run(aggregator=Scaffold(), rounds=2)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, _ = run(
        aggregator=Scaffold(), rounds=4, folder=str(tmp_path / "clients"), ckpt_path=tmp_path / "begun.ckpt"
    )
    assert identical(whole, resumed)


def test_the_folder_of_another_run_is_rejected(tmp_path):
    run(aggregator=Scaffold(), folder=str(tmp_path), rounds=1)
    with pytest.raises(MisconfigurationError, match=r"client_folder=.* of another run: resume that run, or set"):
        run(aggregator=Scaffold(), folder=str(tmp_path), rounds=1)


class FailOnce(ClientCallback):
    """Fails for one client of the second round, the first time."""

    failed = False

    def on_train_start(self, trainer, pl_module):
        if self.round.number == 1 and self.client == 2 and not FailOnce.failed:
            FailOnce.failed = True
            raise RuntimeError("the client failed")


@pytest.mark.parametrize("aggregator", [Scaffold, FedDyn, FedBN])
def test_a_checkpoint_within_a_round_holds_nothing_of_that_round(aggregator, tmp_path):
    norm = aggregator is FedBN
    whole, _ = run(aggregator=aggregator(), batch_norm=norm, rounds=3)
    FailOnce.failed = False
    checkpoint = OnExceptionCheckpoint(tmp_path, filename="failed")
    options = {"callbacks": [checkpoint], "enable_checkpointing": True, "default_root_dir": tmp_path}
    with pytest.raises(RoundFailedError, match="client 2 failed in round 2: RuntimeError: the client failed"):
        run([FailOnce()], aggregator(), batch_norm=norm, rounds=3, **options)
    saved = tmp_path / "failed.ckpt"
    resumed, _ = run([FailOnce()], aggregator(), batch_norm=norm, rounds=3, ckpt_path=saved)
    assert identical(whole, resumed)


def test_fedbn_keeps_layers_as_they_were_trained_whatever_the_transform():
    _, trainer = run(aggregator=FedBN(), batch_norm=True, rounds=3, transforms=[BernoulliMask(0.1)])
    aggregator = trainer.lightning_module.server.aggregator
    moved = [(aggregator.personal_state(client)["layers.1.weight"] != 1).all() for client in range(4)]
    assert all(moved)


class LossMetric(ClientCallback):
    """Keeps a metric, as many users' callbacks do."""

    def __init__(self) -> None:
        self.loss = MeanMetric()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.loss.update(outputs["loss"])

    def on_upload(self, update):
        self.memory = {"loss": self.loss.compute()}


class SavedLosses(LossMetric):
    """Also writes the loss to a file, because the memory of forked processes is lost."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def on_upload(self, update):
        super().on_upload(update)
        torch.save(self.memory["loss"], f"{self.folder}/{self.client}.pt")


def test_metrics_of_client_callbacks_are_not_synchronised_over_processes(tmp_path):
    def losses(name: str, **options) -> list[float]:
        folder = tmp_path / name
        folder.mkdir()
        run([SavedLosses(str(folder))], partition=IID(3), rounds=1, **options)
        return [float(torch.load(folder / f"{client}.pt")) for client in range(3)]

    one = losses("one", devices=1)
    assert len(set(one)) == 3
    assert losses("two", devices=2, strategy="ddp_fork") == pytest.approx(one, rel=1e-5)


class CountsLiving(ClientCallback):
    """Counts the earlier clients' callbacks that are still in memory when a client starts."""

    earlier: ClassVar[list[weakref.ref]] = []
    living: ClassVar[list[int]] = []

    def on_client_start(self, module, optimizers):
        self.living.append(sum(callback() is not None for callback in self.earlier))
        self.earlier.append(weakref.ref(self))


def test_the_callbacks_of_a_client_are_freed_before_the_next_one_starts():
    gc.disable()
    try:
        federate(server=FederatedServer(client=LocalTraining(callbacks=[CountsLiving()])), rounds=1)
    finally:
        gc.enable()
    assert len(CountsLiving.living) > 1
    assert not any(CountsLiving.living)


def test_the_garbage_collector_ignores_what_existed_before_the_first_client_until_the_run_ends(monkeypatch):
    events = []

    class TellsStart(ClientCallback):
        def on_client_start(self, module, optimizers):
            events.append("client")

    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(training.gc, name, partial(events.append, name))
    federate(partition=IID(2), server=FederatedServer(client=LocalTraining(callbacks=[TellsStart()])), rounds=1)
    assert events == ["freeze", "client", "client", "unfreeze"]
