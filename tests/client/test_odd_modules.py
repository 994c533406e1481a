"""Modules with unusual attributes: clients copy only what they change, and share what cannot be copied."""

import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fl_lightning import FederatedDataModule, FederatedModule
from fl_lightning.callbacks import ClientEvaluation, FederatedServer
from fl_lightning.client.model import ClientModel
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID
from tests.test_equivalence import SameBatches
from tests.toys import Blobs, Net, federate, identical, quiet_trainer


def trained(make, **options):
    torch.manual_seed(0)
    federated, _ = federate(make(), rounds=2, **options)
    return {name.replace("_orig_mod.", ""): value for name, value in federated.state_dict().items()}


class CompiledNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.compile(self.layers, backend="eager")


class CompiledInConfigureModel(Net):
    def configure_model(self):
        if not hasattr(self.layers, "_orig_mod"):
            self.layers = torch.compile(self.layers, backend="eager")


class CompiledInPlace(Net):
    def __init__(self) -> None:
        super().__init__()
        self.compile(backend="eager")
        self.layers.compile(backend="eager")


class CompiledForward(Net):
    def __init__(self) -> None:
        super().__init__()
        self.forward = torch.compile(self.forward, backend="eager")


class ClosureOverItself(Net):
    def __init__(self) -> None:
        super().__init__()

        def forward(inputs, again=True):
            return forward(inputs, again=False) if again else self.layers(inputs)

        self.run = forward

    def forward(self, inputs):
        return self.run(inputs)


class HookOverItself(Net):
    """Its loss is that of the activation which a hook keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.register_forward_hook(lambda layer, inputs, outputs: setattr(self, "kept", outputs))

    def training_step(self, batch, batch_idx):
        self(batch[0])
        return functional.cross_entropy(self.kept, batch[1])


@pytest.mark.parametrize(
    "module",
    [CompiledNet, CompiledInConfigureModel, CompiledInPlace, CompiledForward, ClosureOverItself, HookOverItself],
)
def test_a_client_trains_its_own_weights_however_the_module_refers_to_itself(module):
    assert identical(trained(module), trained(Net))


def test_a_compiled_network_stays_compiled_and_is_not_compiled_again_for_every_client():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    module = Net()
    module.layers = torch.compile(module.layers, backend=backend)
    model = ClientModel(module)
    for _ in range(3):
        model.reset(module.state_dict())(torch.randn(8, 6)).sum().backward()
    assert len(graphs) == 1


def test_a_module_that_is_compiled_as_a_whole_is_federated_uncompiled_and_says_so(caplog):
    torch.manual_seed(0)
    federated = FederatedModule(torch.compile(Net(), backend="eager"))
    assert type(federated.module) is Net
    assert "Net is compiled as a whole" in caplog.text
    assert "self.net = torch.compile(self.net)" in caplog.text
    fit(federated)
    assert identical(dict(federated.state_dict()), trained(Net))


def fit(model) -> None:
    trainer = quiet_trainer(max_epochs=2, callbacks=[FederatedServer()])
    trainer.fit(model, FederatedDataModule(Blobs(), partition=IID(4)))


def test_a_federated_module_that_is_compiled_as_a_whole_runs_uncompiled():
    torch.manual_seed(0)
    federated = FederatedModule(Net())
    fit(torch.compile(federated, backend="eager"))
    assert identical(dict(federated.state_dict()), trained(Net))


class WeightNorm(Net):
    """Its first layer's weight is computed before every forward, so it is not a leaf and cannot be deep-copied."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.layers[0] = nn.utils.weight_norm(self.layers[0])


def test_old_weight_norm_trains_like_a_plain_run():
    def new():
        torch.manual_seed(0)
        return WeightNorm()

    federated, _ = federate(new(), partition=IID(1), rounds=3)
    plain = new()
    quiet_trainer(max_epochs=3).fit(plain, SameBatches(rounds_are_epochs=True))
    assert identical(dict(federated.state_dict()), dict(plain.state_dict()))


def test_old_weight_norm_resumes_and_evaluates_clients(tmp_path):
    def run(**options):
        torch.manual_seed(0)
        return federate(WeightNorm(), callbacks=[ClientEvaluation()], **options)

    whole, _ = run(rounds=3)
    _, trainer = run(rounds=2)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, _ = run(rounds=3, ckpt_path=tmp_path / "begun.ckpt")
    assert identical(dict(whole.state_dict()), dict(resumed.state_dict()))


class Journal:
    """Something of the user's that holds a lock, and a count that each client starts anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps = 0


class Locked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()

    def training_step(self, batch, batch_idx):
        with self.journal.lock:
            self.journal.steps += 1
            self.file.write(f"{self.journal.steps} ")
        return super().training_step(batch, batch_idx)


def test_locks_and_open_files_are_shared_and_what_holds_them_is_each_clients_own(tmp_path, caplog):
    torch.manual_seed(0)
    module = Locked()
    with open(tmp_path / "steps.txt", "w") as module.file:
        federate(module, rounds=2)
    # Two rounds of four clients with 30 samples each, in batches of 16.
    assert (tmp_path / "steps.txt").read_text() == "1 2 " * 8
    assert identical(dict(module.state_dict()), trained(Net))
    (line,) = [record.message for record in caplog.records if "share" in record.message]
    assert line == "Clients share attributes of Locked that cannot be copied: journal.lock (lock), file (TextIOWrapper)"


def test_a_generator_is_refused_by_name_before_training():
    class Noisy(Net):
        def __init__(self) -> None:
            super().__init__()
            self.schedule = (0.1 for _ in range(10))

        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    with pytest.raises(MisconfigurationError, match=r"Noisy\.schedule is a generator") as error:
        federate(Noisy(), rounds=1, num_sanity_val_steps=0)
    assert "\n" not in str(error.value)


class Table(Net):
    """Reads a large constant, a non-persistent buffer and a nested tensor in every step."""

    seen: list[set[int]] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(6, 50_000)
        self.rows = self.table[:3]
        self.nested = {"more": [torch.randn(6, 10_000)]}
        self.register_buffer("cache", torch.randn(6, 10_000), persistent=False)

    @property
    def constants(self) -> list[torch.Tensor]:
        return [self.table, self.nested["more"][0], self.cache]

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        read = sum((inputs @ table).mean() for table in self.constants) + self.rows.sum()
        self.seen.append({address(table) for table in self.constants})
        return functional.cross_entropy(self(inputs), labels) + 0 * read


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory is, without asking for the right to change it."""
    return torch._C._data_address(tensor)


def test_no_byte_of_a_large_tensor_is_copied_for_a_client_that_only_reads_it():
    Table.seen.clear()
    torch.manual_seed(0)
    module = Table()
    owned = {address(table) for table in module.constants}
    federate(module, rounds=2)
    assert Table.seen
    assert all(addresses == owned for addresses in Table.seen)


@pytest.mark.parametrize("through_data", [False, True])
def test_a_client_that_changes_a_tensor_in_place_changes_its_own_copy(through_data):
    module = Table()
    before = [table.clone() for table in module.constants]
    model = ClientModel(module)
    first = model.reset(module.state_dict())
    for table in first.constants:
        (table.data if through_data else table).zero_()
    assert not first.rows.any()  # a view stays a view
    second = model.reset(module.state_dict())
    for owned, start, other in zip(module.constants, before, second.constants, strict=True):
        assert torch.equal(owned, start)
        assert torch.equal(other, start)


def test_the_memory_of_an_array_is_copied_once_for_all_clients():
    module = Net()
    array = np.ones(1000, dtype=np.float32)
    module.table = torch.from_numpy(array)
    model = ClientModel(module)
    first, second = (model.reset(module.state_dict()).table for _ in range(2))
    assert address(first) == address(second) != address(module.table)
    first.zero_()
    assert array.all()
    assert second.all()


def test_prepare_data_of_source_and_module_see_the_trainer():
    seen = []

    class Source(Blobs):
        def prepare_data(self):
            seen.append(self.trainer.max_epochs)

    class Module(Net):
        def prepare_data(self):
            seen.append(self.trainer.max_epochs)

    federate(Module(), Source(), rounds=1)
    assert seen == [1, 1]
