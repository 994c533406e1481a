"""FedNS and FedAvg+lastFC against their equations in NumPy, node by node, and in the cases left open by the paper."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedAvgLastFC, Federation, FedNS
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from tests.toys import ConvNet, Net, federate, identical, random_state, random_updates

BOTH = pytest.mark.parametrize("aggregator", [FedAvgLastFC, FedNS])


def shares(amounts: np.ndarray, p: np.ndarray) -> np.ndarray:
    return amounts / amounts.sum() if amounts.sum() > 0 else p


def numpy_node_weights(deltas: list[np.ndarray], node: int, p: np.ndarray) -> np.ndarray:
    """Apply algorithm 3 to one node: the variances over their sum, without those outside μ ± 2σ."""
    v = np.array([np.var(delta[node].ravel()) for delta in deltas])
    inside = np.abs(v - v.mean()) <= 2 * v.std() * (1 + 1e-6)
    return shares(np.where(inside, v, 0.0), p)


def numpy_fedns(model, updates, weighting="samples", head="head", hidden=("conv", "hidden")) -> dict[str, np.ndarray]:
    """Compute FedNS in float64; ``hidden=()`` gives FedAvg+lastFC."""
    start = {name: value.detach().numpy().astype(np.float64) for name, value in model.state_dict().items()}
    states = [{name: value.numpy().astype(np.float64) for name, value in u.state.items()} for u in updates]
    sizes = np.array([u.num_samples if weighting == "samples" else 1 for u in updates], dtype=np.float64)
    p = sizes / sizes.sum()
    counts = np.stack([u.class_counts.numpy() for u in updates]).astype(np.float64)
    expected = {
        name: max(state[name] for state in states)
        if name.endswith("num_batches_tracked")
        else sum(p[k] * state[name] for k, state in enumerate(states))
        for name in start
    }
    for layer in (*hidden, head):
        deltas = [state[f"{layer}.weight"] - start[f"{layer}.weight"] for state in states]
        for node in range(len(deltas[0])):
            weights = shares(counts[:, node], p) if layer == head else numpy_node_weights(deltas, node, p)
            for name in (f"{layer}.weight", f"{layer}.bias"):
                expected[name][node] = sum(weights[k] * state[name][node] for k, state in enumerate(states))
    return expected


def assert_agrees(state, expected, rtol=1e-5):
    for name in expected:
        np.testing.assert_allclose(state[name].numpy(), expected[name], rtol=rtol, atol=1e-7, err_msg=name)


def scaled_updates(model, count: int, generator: np.random.Generator) -> list[ClientUpdate]:
    """Return clients that moved very different distances from the model, so that some nodes have outliers."""
    updates = random_updates(model, count, generator)
    start = model.state_dict()
    for update in updates:
        length = 10 ** generator.uniform(-3, 1)
        for name, _ in model.named_parameters():
            update.state[name] = start[name] + length * (update.state[name] - start[name])
    return updates


def hidden_clients(*rows, sizes=None) -> tuple[nn.Module, list[ClientUpdate]]:
    """Return a model at 0 with one hidden node, and clients that move the node's incoming weights to the rows."""
    model = nn.Sequential(nn.Linear(len(rows[0]), 1), nn.Linear(1, 2))
    for value in model.parameters():
        nn.init.zeros_(value)
    updates = []
    for k, (row, n) in enumerate(zip(rows, sizes or [1] * len(rows), strict=True)):
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        state["0.weight"] = torch.tensor([row], dtype=torch.float32)
        state["0.bias"] = torch.tensor([float(k)])
        updates.append(ClientUpdate(k, state, n, class_counts=torch.tensor([n, 0])))
    return model, updates


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("aggregator", "hidden"), [(FedNS, ("conv", "hidden")), (FedAvgLastFC, ())])
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_agrees_with_numpy(aggregator, hidden, weighting, count, generator):
    model = ConvNet()
    for _ in range(3):
        updates = scaled_updates(model, count, generator)
        state = aggregator().aggregate(model, updates, weighting=weighting).state
        assert_agrees(state, numpy_fedns(model, updates, weighting, hidden=hidden))
        model.load_state_dict(state)


@BOTH
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 8))
@settings(max_examples=25, deadline=None)
def test_the_order_of_clients_does_not_matter(aggregator, seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    updates = random_updates(model, count, generator)
    renumbered = [replace(updates[i], client=client) for client, i in enumerate(generator.permutation(count))]
    first, second = (aggregator().aggregate(model, clients).state for clients in (updates, renumbered))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-6)


@BOTH
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_identical_clients_aggregate_to_that_client(aggregator, seed, count):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    state = random_state(model, generator)
    updates = [replace(update, state=state) for update in random_updates(model, count, generator)]
    result = aggregator().aggregate(model, updates).state
    for name in state:
        torch.testing.assert_close(result[name], state[name], rtol=1e-6, atol=1e-6)


@BOTH
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_every_parameter_lies_between_the_clients(aggregator, seed, count):
    """A node's weights are not negative and sum to 1."""
    model = ConvNet()
    updates = scaled_updates(model, count, np.random.default_rng(seed))
    result = aggregator().aggregate(model, updates).state
    for name, _ in model.named_parameters():
        values = torch.stack([update.state[name] for update in updates])
        assert (result[name] >= values.amin(0) - 1e-5).all(), name
        assert (result[name] <= values.amax(0) + 1e-5).all(), name


@BOTH
def test_a_single_client_with_one_sample_is_served_unchanged(aggregator, generator):
    model = ConvNet()
    state = random_state(model, generator)
    update = ClientUpdate(3, state, num_samples=1, class_counts=torch.tensor([0, 1, 0, 0]))
    result = aggregator().aggregate(model, [update]).state
    for name in state:
        torch.testing.assert_close(result[name], state[name], rtol=1e-6, atol=1e-6)


@BOTH
def test_the_head_unit_of_a_class_that_one_client_holds_comes_from_that_client(aggregator, generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    for update in updates:
        update.class_counts[2] = 5 if update.client == 1 else 0
    state = aggregator().aggregate(model, updates).state
    torch.testing.assert_close(state["head.weight"][2], updates[1].state["head.weight"][2])
    torch.testing.assert_close(state["head.bias"][2], updates[1].state["head.bias"][2])


@BOTH
def test_a_class_that_nobody_holds_is_averaged_by_samples(aggregator, generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    for update in updates:
        update.class_counts[2] = 0
    state = aggregator().aggregate(model, updates).state
    total = sum(update.num_samples for update in updates)
    expected = sum(update.num_samples / total * update.state["head.bias"][2].double() for update in updates)
    torch.testing.assert_close(state["head.bias"][2].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_no_client_is_left_out_among_five_or_fewer(count):
    """The farthest of m clients is at most √(m - 1) σ away. With 5 clients this is 2 σ, which is inside."""
    model, updates = hidden_clients(*[[0, 2]] * (count - 1), [0, 2000])  # variances 1, ..., 1, 10⁶
    state = FedNS().aggregate(model, updates).state
    total = count - 1 + 1e6
    assert state["0.weight"][0, 1].item() == pytest.approx(((count - 1) * 2 + 1e6 * 2000) / total)


def test_rounding_does_not_leave_out_one_of_five_clients():
    for tenths in range(10, 100):
        model, updates = hidden_clients(*[[0, 0.1]] * 4, [0, tenths / 10])
        weight = FedNS().aggregate(model, updates).state["0.weight"][0, 1].item()
        assert weight == pytest.approx((4 * 1**3 + tenths**3) / (4 * 1**2 + tenths**2) / 10)


def test_an_outlier_among_six_is_left_out_of_its_node():
    model, updates = hidden_clients(*[[0, 2]] * 5, [0, 2000])
    state = FedNS().aggregate(model, updates).state
    assert state["0.weight"][0].tolist() == pytest.approx([0, 2])
    assert state["0.bias"].item() == pytest.approx(np.mean([0, 1, 2, 3, 4]))


def test_an_outlier_in_one_node_counts_in_the_others(generator):
    model = ConvNet()
    updates = random_updates(model, 8, generator)
    updates[7].state["hidden.weight"][0] *= 1000
    weight = FedNS().aggregate(model, updates).state["hidden.weight"].numpy()
    without_it = numpy_fedns(model, updates[:7])["hidden.weight"]
    np.testing.assert_allclose(weight[0], without_it[0], rtol=1e-5)
    assert not np.isclose(weight[1], without_it[1], rtol=1e-5).any()


def test_a_client_is_weighted_by_the_variance_of_its_update():
    model, updates = hidden_clients([0, 2], [0, 4])  # variances 1 and 4
    state = FedNS().aggregate(model, updates).state
    assert state["0.weight"][0].tolist() == pytest.approx([0, 0.2 * 2 + 0.8 * 4])
    assert state["0.bias"].item() == pytest.approx(0.8)


def test_a_client_that_did_not_move_a_node_has_no_weight_in_it():
    model, updates = hidden_clients([0, 0], [0, 4])
    assert FedNS().aggregate(model, updates).state["0.weight"][0].tolist() == [0, 4]


def test_a_node_that_nobody_moved_is_averaged_by_samples():
    model, updates = hidden_clients([0, 0], [0, 0], sizes=[1, 3])
    state = FedNS().aggregate(model, updates).state
    assert state["0.weight"][0].tolist() == [0, 0]
    assert state["0.bias"].item() == pytest.approx(0.75)


def test_a_node_moved_without_variance_is_averaged_by_samples():
    model, updates = hidden_clients([0.1] * 3, [0.7] * 3, sizes=[1, 3])
    state = FedNS().aggregate(model, updates).state
    assert state["0.weight"][0].tolist() == pytest.approx([0.25 * 0.1 + 0.75 * 0.7] * 3)


def test_a_node_with_one_incoming_weight_is_averaged_by_samples():
    model, updates = hidden_clients([1], [5], sizes=[1, 3])
    assert FedNS().aggregate(model, updates).state["0.weight"].item() == pytest.approx(4)


def test_a_node_that_only_an_outlier_moved_is_averaged_by_samples():
    model, updates = hidden_clients(*[[0, 0]] * 6, [0, 14], sizes=[1] * 6 + [8])
    assert FedNS().aggregate(model, updates).state["0.weight"][0, 1].item() == pytest.approx(8)


class Everything(nn.Module):
    """Has depthwise, one- and three-dimensional and transposed convolutions, and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(2, 3, 3)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.space = nn.Conv3d(1, 2, 2)
        self.transposed = nn.ConvTranspose2d(2, 4, 3)
        self.half_frozen = nn.Linear(3, 5)
        self.half_frozen.weight.requires_grad_(False)
        self.classes = nn.Linear(5, 4)
        self.last = nn.Linear(4, 4)


def test_convolutions_of_all_dimensions_have_nodes_and_transposed_ones_do_not(generator):
    model = Everything()
    updates = scaled_updates(model, 8, generator)
    state = FedNS(head="classes").aggregate(model, updates).state
    hidden = ("line", "depthwise", "space", "last")
    expected = numpy_fedns(model, updates, head="classes", hidden=hidden)
    assert_agrees(state, expected)


def test_the_head_is_the_last_linear_layer_unless_named(generator):
    model = Everything()
    updates = random_updates(model, 3, generator)
    state = FedAvgLastFC().aggregate(model, updates).state
    expected = numpy_fedns(model, updates, head="last", hidden=())
    assert_agrees(state, expected)


def test_a_model_that_is_one_linear_layer_is_all_head(generator):
    model = nn.Linear(3, 4)
    updates = random_updates(model, 2, generator)
    updates[0].class_counts.fill_(0)
    updates[1].class_counts.fill_(1)
    assert identical(FedNS().aggregate(model, updates).state, updates[1].state)


def test_a_tied_weight_is_averaged_by_samples(generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4))
    model[1].weight = model[0].weight
    updates = random_updates(model, 3, generator)
    for update in updates:
        update.state["1.weight"] = update.state["0.weight"]
    state = FedNS().aggregate(model, updates).state
    total = sum(update.num_samples for update in updates)
    expected = sum(update.num_samples / total * update.state["0.weight"].double() for update in updates)
    assert torch.equal(state["0.weight"], state["1.weight"])
    torch.testing.assert_close(state["0.weight"].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head", [None, "fc", "net.head"])
def test_a_layer_under_two_names_is_averaged_once(head, generator):
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = ConvNet()
            self.fc = self.net.head

    model = Wrapped()
    plain = random_updates(model.net, 4, generator)
    updates = [
        replace(
            update,
            state={f"net.{name}": value for name, value in update.state.items()}
            | {f"fc.{name}": update.state[f"head.{name}"] for name in ("weight", "bias")},
        )
        for update in plain
    ]
    state = FedNS(head).aggregate(model, updates).state
    assert torch.equal(state["fc.weight"], state["net.head.weight"])
    assert_agrees({name.removeprefix("net."): value for name, value in state.items()}, numpy_fedns(model.net, plain))


@BOTH
def test_a_run_of_a_lightning_module_finds_its_layers(aggregator):
    module = Net(batch_norm=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    federated, _ = federate(module, server=FederatedServer(aggregator()), rounds=1)
    after = federated.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(after["layers.4.weight"], before["layers.4.weight"])


@BOTH
def test_an_update_without_class_counts_is_refused(aggregator, generator):
    model = ConvNet()
    update = replace(random_updates(model, 1, generator)[0], client=3, class_counts=None)
    message = f"client 3 reports no class counts, but {aggregator.__name__} averages the head by class: use data"
    with pytest.raises(MisconfigurationError, match=message):
        aggregator().aggregate(model, [update])


@BOTH
def test_more_classes_than_the_head_has_outputs_are_refused(aggregator, generator):
    model = ConvNet()
    model.head = nn.Linear(5, 3)
    updates = random_updates(model, 2, generator)
    with pytest.raises(MisconfigurationError, match="client 0 has 4 classes, but the head has 3 outputs: set"):
        aggregator().aggregate(model, updates)


@BOTH
def test_classes_beyond_the_counts_are_treated_as_held_by_nobody(aggregator, generator):
    model = ConvNet()
    updates = random_updates(model, 3, generator)
    short = [replace(update, class_counts=update.class_counts[:3]) for update in updates]
    for update in updates:
        update.class_counts[3] = 0
    first, second = (aggregator().aggregate(model, some).state["head.weight"] for some in (updates, short))
    assert torch.equal(first, second)


@BOTH
def test_a_model_without_a_linear_layer_is_refused_before_the_first_round(aggregator):
    message = f"Sequential has no nn.Linear, but {aggregator.__name__} averages the last one by class: use a model"
    with pytest.raises(MisconfigurationError, match=message):
        aggregator().prepare(nn.Sequential(nn.Conv2d(1, 2, 3)), Federation(num_clients=2, seed=0))


@BOTH
@pytest.mark.parametrize("head", ["conv", "nowhere"])
def test_a_head_that_is_not_a_linear_layer_is_refused_before_the_first_round(aggregator, head):
    message = f"head='{head}' is not an nn.Linear of ConvNet: set it to the name of one, .* the last, 'head'"
    with pytest.raises(MisconfigurationError, match=message):
        aggregator(head).prepare(ConvNet(), Federation(num_clients=2, seed=0))
