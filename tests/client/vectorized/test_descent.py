"""Clients that are moved while their gradients are computed."""

import pytest
import torch
from torch import nn

from fl_lightning.callbacks import ClientCallback, LearningRateDecay, ProximalTerm
from fl_lightning.client.vectorized.descent import is_gradient_descent
from fl_lightning.client.vectorized.recording import move_parameters, record
from fl_lightning.client.vectorized.stack import ModelStack
from fl_lightning.client.vectorized.step import ClientStep
from fl_lightning.data import IID, Dirichlet, RandomClients
from tests.client.vectorized.test_equality import Configurable, end, largest_difference, states
from tests.client.vectorized.test_recording import operations
from tests.test_every_algorithm import run, run_until_killed
from tests.toys import Net, identical


@pytest.fixture
def small_models_descend(monkeypatch):
    monkeypatch.setattr("fl_lightning.client.vectorized.descent._SMALLEST_STACK", 0)


@pytest.fixture
def descents(monkeypatch, small_models_descend):
    """Return a list with an entry for every step of gradient descent."""
    found: list[bool] = []
    descend = ClientStep.descend

    def counted(*args):
        result = descend(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(ClientStep, "descend", counted)
    return found


@pytest.mark.parametrize("partition", [IID(4), Dirichlet(4, alpha=0.5)], ids=["equal", "ragged"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_clients_end_like_those_with_a_trainer_each(batch_norm, partition, descents):
    assert largest_difference(*states(lambda: Net(batch_norm=batch_norm), partition, epochs=2)) < 2e-6
    assert any(descents) or isinstance(partition, Dirichlet)


@pytest.mark.parametrize("callbacks", [[LearningRateDecay(0.5)], [ProximalTerm(0.1)]], ids=["decay", "proximal term"])
def test_clients_with_callbacks_end_like_those_with_a_trainer_each(callbacks, descents):
    assert largest_difference(*states(Net, rounds=3, callbacks=callbacks)) < 2e-6
    assert any(descents) == isinstance(callbacks[0], LearningRateDecay)


def test_clients_with_a_scheduler_end_like_those_with_a_trainer_each(descents):
    def make():
        return Configurable(
            lambda p: torch.optim.SGD(p, lr=0.1), lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5), interval="step"
        )

    assert largest_difference(*states(make, epochs=2)) < 2e-6
    assert all(descents)


def test_a_run_that_is_killed_ends_like_an_uninterrupted_one(tmp_path, small_models_descend):
    options = {"algorithm": "FedAvg", "partition": IID(5), "selection": RandomClients(count=3), "rounds": 3}
    options["client"] = {"execution": "vectorized"}
    whole, _ = run(module=_net(), **options)
    options["default_root_dir"] = tmp_path
    run_until_killed(1, "validated", module=_net(), **options)
    resumed, _ = run(module=_net(), ckpt_path=tmp_path / "checkpoints" / "last.ckpt", **options)
    assert identical(whole, resumed)


def test_a_step_whose_recording_was_dropped_is_recorded_again_with_the_same_bits(monkeypatch, small_models_descend):
    partition = IID(5)
    ends = []
    for kept in (1, 32):
        monkeypatch.setattr("fl_lightning.client.vectorized.step._MAX_DESCENTS", kept)
        ends.append(end("vectorized", Net, partition, chunk=2))  # chunks of 2, 2 and 1 clients
    assert identical(*ends)


def _net() -> Net:
    torch.manual_seed(0)
    return Net()


class _Looks(ClientCallback):
    def on_step(self, optimizer):
        pass


OPTIMIZERS = {
    "plain": (lambda p: torch.optim.SGD(p, lr=0.1), True),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False),
    "decay": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), False),
    "ascent": (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), False),
    "Adam": (lambda p: torch.optim.Adam(p), False),
    "two groups": (lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.2}], lr=0.1), False),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_only_plain_sgd_is_gradient_descent(optimizer, small_models_descend):
    net = nn.Linear(2, 3)
    stack = ModelStack(net, ["weight", "bias"], [net.state_dict()] * 2)
    make, expected = OPTIMIZERS[optimizer]
    assert is_gradient_descent(make(list(stack.parameters.values())), stack, []) == expected
    assert not is_gradient_descent(make(list(stack.parameters.values())), stack, [("looks", _Looks())])


def test_a_small_model_takes_separate_steps():
    sizes = []
    for features in (10, 10**6):
        stack = ModelStack(net := nn.Linear(features, 1), ["weight"], [net.state_dict()])
        sizes.append(is_gradient_descent(torch.optim.SGD(stack.parameters.values(), lr=0.1), stack, []))
    assert sizes == [False, True]


def test_a_product_of_matrices_is_added_while_it_is_computed():
    def gradients(parameters, a, b, negative_rate):
        product = torch.bmm(a, b)
        shared = torch.bmm(b, a)
        return [product, shared, shared, a.sum(0, keepdim=True)]

    shapes = [(2, 3, 3), (2, 3, 3), (2, 3, 3), (1, 3, 3)]
    parameters = [torch.rand(shape) for shape in shapes]
    a, b = torch.rand(2, 3, 3), torch.rand(2, 3, 3)
    recording = record(gradients, parameters, a, b, -1.0)
    move_parameters(recording, 4)
    assert operations(recording).count("aten.baddbmm_.default") == 1  # the other product is the gradient of two
    moved = [parameter.clone() for parameter in parameters]
    recording(moved, a, b, -0.3)
    for new, old, gradient in zip(moved, parameters, gradients(parameters, a, b, 0.0), strict=True):
        torch.testing.assert_close(new, old - 0.3 * gradient)


PRECISIONS: list[str] = []


class NotesPrecision(Net):
    def training_step(self, batch, batch_idx):
        PRECISIONS.append(torch.get_float32_matmul_precision())
        return super().training_step(batch, 0)  # a step that reads the number of the batch is not recorded


@pytest.mark.parametrize("descends", [False, True])
def test_gradients_are_compared_with_all_digits_and_computed_with_those_that_are_set(descends, monkeypatch):
    monkeypatch.setattr("fl_lightning.client.vectorized.descent._SMALLEST_STACK", 0 if descends else 10**9)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        PRECISIONS.clear()
        end("vectorized", NotesPrecision, IID(4))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    # A step of gradient descent is only run to record and compare it; a replay does not call the module.
    assert set(PRECISIONS) == ({"highest"} if descends else {"highest", "medium"})
