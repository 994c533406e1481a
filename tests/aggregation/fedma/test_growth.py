"""FedMA with ``max_width``: units that resemble no other become new units of the model."""

import copy

import pytest
import torch
from torch import nn

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.aggregation import Federation, FedMA
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.widths import resize
from fl_lightning.data import RandomClients
from fl_lightning.models import BiLSTM
from fl_lightning.models.nets import FullyConnected
from tests.aggregation.fedma.nets import IMAGES, NETS, TOKENS, Recurrent, outputs, randomized
from tests.toys import Net, federate, identical, random_updates


class SingleLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, tokens):
        _, (ends, _) = self.lstm(self.embedding(tokens))
        return self.head(ends[-1])


GROWING = {name: NETS[name][:2] for name in ("residual", "dense", "depthwise")} | {"LSTM": (SingleLSTM, TOKENS)}


def clients_without_common_units():
    """Return a model and the updates of two clients whose hidden units are far apart."""
    torch.manual_seed(0)
    model = FullyConnected(inputs=6, hidden=(3,), num_classes=4)
    states = [{name: torch.randn_like(value) for name, value in model.state_dict().items()} for _ in range(2)]
    for client, state in enumerate(states):
        state["1.weight"] = 10 * torch.eye(6)[3 * client : 3 * client + 3]
    return model, [ClientUpdate(client, state, 5) for client, state in enumerate(states)]


def grown(model: nn.Module, state) -> nn.Module:
    other = copy.deepcopy(model)
    resize(other, state)
    other.load_state_dict(state)
    return other


def test_units_that_resemble_no_other_are_all_kept():
    model, updates = clients_without_common_units()
    state = FedMA(max_width=9, gamma=1).aggregate(model, updates).state
    kept = {tuple(row) for row in state["1.weight"].tolist()}
    assert kept == {tuple(row) for row in (10 * torch.eye(6)).tolist()}


def test_a_client_computes_the_same_after_the_model_grew():
    model, updates = clients_without_common_units()
    aggregator, inputs = FedMA(max_width=9, gamma=1), torch.randn(7, 6)
    state = aggregator.aggregate(model, updates).state
    for update in updates:
        start = {**state, **aggregator.personal_state(update.client)}
        assert start["3.weight"].shape == (4, 6)
        wide = grown(model, start)
        torch.testing.assert_close(wide(inputs), outputs(model, update.state, inputs))


@pytest.mark.parametrize("max_width", [3, 4, 5, 6, 7])
def test_a_layer_grows_no_further_than_max_width(max_width):
    model, updates = clients_without_common_units()
    state = FedMA(max_width=max_width, gamma=1).aggregate(model, updates).state
    assert len(state["1.bias"]) == min(max_width, 6)


def test_a_new_unit_is_the_mean_of_its_members_alone():
    model, updates = clients_without_common_units()
    updates[1].state["1.weight"][0] = updates[0].state["1.weight"][0] + 0.1
    updates[1].num_samples = 15
    state = FedMA(max_width=9, gamma=1).aggregate(model, updates).state
    first, second = (update.state["1.weight"] for update in updates)
    expected = torch.cat([first[:1] + 0.75 * 0.1, first[1:], second[1:]])
    assert {tuple(row) for row in state["1.weight"].round(decimals=3).tolist()} == {
        tuple(row) for row in expected.round(decimals=3).tolist()
    }


@pytest.mark.parametrize("estimate", ["mean", "map"])
def test_shrinking_counts_the_members_of_each_unit(estimate):
    model, updates = clients_without_common_units()
    state = FedMA(max_width=9, gamma=1, estimate=estimate).aggregate(model, updates).state
    largest = 10 if estimate == "mean" else 10 * 1 / 2  # one member: J / (J + 1) with J = 1
    torch.testing.assert_close(state["1.weight"].max(), torch.tensor(float(largest)))


def test_gamma_decides_how_many_units_are_born(generator):
    model = FullyConnected(inputs=6, hidden=(8,), num_classes=4)
    updates = random_updates(model, 4, generator)
    few, many = (
        len(FedMA(max_width=40, gamma=gamma).aggregate(model, updates).state["1.bias"]) for gamma in (1e-9, 1e9)
    )
    assert few < many == 32


@pytest.mark.parametrize("net", GROWING)
@pytest.mark.parametrize("one_shot", [True, False])
def test_the_grown_model_runs_and_grows_on(net, one_shot):
    make, inputs = GROWING[net]
    model, aggregator = randomized(make()), FedMA(max_width=9, gamma=1e6, one_shot=one_shot)
    sizes = []
    for number in range(3):
        updates = []
        for client in range(3):
            start = {**model.state_dict(), **(aggregator.personal_state(client) if number else {})}
            torch.manual_seed(10 * number + client)
            moved = {name: v + 0.1 * torch.rand_like(v) if v.is_floating_point() else v for name, v in start.items()}
            updates.append(ClientUpdate(client, moved, 5))
        model = grown(model, aggregator.aggregate(model, updates, round=number).state)
        assert model(inputs).isfinite().all()
        sizes.append(sum(value.numel() for value in model.parameters()))
    assert sizes[0] > sum(value.numel() for value in make().parameters())
    assert sizes == sorted(sizes)


def run(rounds, **options):
    torch.manual_seed(0)
    server = FederatedServer(FedMA(max_width=11, gamma=50.0), client=LocalTraining(epochs=1))
    federated, trainer = federate(
        Net(batch_norm=True), server=server, rounds=rounds, selection=RandomClients(count=3), **options
    )
    return dict(federated.state_dict()), trainer


def test_a_run_whose_model_grows_resumes_bit_for_bit(tmp_path):
    whole, _ = run(5)
    assert 8 < len(whole["layers.0.bias"]) <= 11
    for begun in (1, 2):
        _, trainer = run(begun)
        trainer.save_checkpoint(tmp_path / "begun.ckpt")
        resumed, _ = run(5, ckpt_path=tmp_path / "begun.ckpt")
        assert identical(whole, resumed)


def test_two_processes_grow_the_same_model_as_one():
    one, _ = run(4)
    two, _ = run(4, strategy="ddp_fork", devices=2)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


class FixedView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(64, 2)

    def forward(self, images):
        return self.head(self.conv(images).view(-1, 64))


REFUSED = {
    "a fixed width in forward": (FixedView, "conv cannot get more units, because a reshape in forward expects 64"),
    "both directions": (lambda: BiLSTM(9, 4, 5, 3), "lstm cannot get more units, because all layers and directions"),
    "several layers": (lambda: Recurrent(nn.GRU), "rnn cannot get more units"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_grow_is_refused_with_the_reason(case):
    make, reason = REFUSED[case]
    with pytest.raises(MisconfigurationError, match=reason) as refusal:
        FedMA(max_width=200).prepare(make(), Federation(num_clients=4, seed=0))
    assert "\n" not in str(refusal.value)
    FedMA().prepare(make(), Federation(num_clients=4, seed=0))


@pytest.mark.parametrize("execution", ["vectorized", "auto"])
def test_vectorised_training_of_a_model_that_grows_is_refused(execution):
    federation = Federation(num_clients=4, seed=0, local_training=LocalTraining(execution=execution))
    with pytest.raises(MisconfigurationError, match=f"client.execution={execution}"):
        FedMA(max_width=200).prepare(Net(), federation)


def test_a_model_with_a_flattened_consumer_can_grow():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    FedMA(max_width=8).prepare(model, Federation(num_clients=4, seed=0))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state |= {"0.weight": torch.randn(6, 1, 3, 3), "0.bias": torch.randn(6), "2.weight": torch.randn(2, 96)}
    assert grown(model, state)(IMAGES).shape == (5, 2)
