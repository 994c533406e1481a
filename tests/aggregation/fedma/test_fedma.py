"""FedMA on permuted copies of a net, against a match by brute force, and stage by stage in a run."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback
from torch import nn

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.aggregation import FedAvg, Federation
from fl_lightning.aggregation.fedma.aggregator import FedMA
from fl_lightning.aggregation.fedma.client import StagedLayers
from fl_lightning.aggregation.fedma.plan import read_plan
from fl_lightning.callbacks import FederatedServer, RoundCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout
from fl_lightning.data import IID, RandomClients
from fl_lightning.models.nets import FullyConnected
from fl_lightning.transforms import BernoulliMask
from tests.toys import Blobs, ConvNet, Net, federate, identical, quiet_trainer, random_state, random_updates


def small_mlp() -> nn.Module:
    return FullyConnected(inputs=6, hidden=(7, 5), num_classes=4)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 6),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(6, 4),
    )


NETS = {"mlp": (small_mlp, (6,)), "cnn": (small_cnn, (1, 6, 6))}


def permuted_copy(model: nn.Module, generator: np.random.Generator) -> dict[str, torch.Tensor]:
    """Return the same function with its hidden units in another order, computed column by column as on paper."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for name, following in pairwise(layers):
        units = len(state[f"{name}.weight"])
        order = generator.permutation(units).tolist()
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in state:
                state[f"{name}.{kind}"] = state[f"{name}.{kind}"][order]
        size = state[f"{following}.weight"].shape[1] // units
        columns = [unit * size + offset for unit in order for offset in range(size)]
        state[f"{following}.weight"] = state[f"{following}.weight"][:, columns]
    return state


def outputs(model: nn.Module, state: dict[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    inputs = torch.randn(20, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.func.functional_call(model.eval(), state, (inputs,))


def start_of(aggregator: FedMA, model: nn.Module, client: int) -> dict[str, torch.Tensor]:
    return {**model.state_dict(), **aggregator.personal_state(client)}


def distinct(model: nn.Module, generator: np.random.Generator) -> nn.Module:
    model.load_state_dict(random_state(model, generator))
    return model


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("one_shot", [True, False])
def test_permuted_copies_are_served_as_the_same_function(net, one_shot, generator):
    make, shape = NETS[net]
    model = distinct(make(), generator)
    updates = [ClientUpdate(k, permuted_copy(model, generator), 10 + k) for k in range(4)]
    expected = outputs(model, dict(model.state_dict()), shape)
    for update in updates:
        torch.testing.assert_close(outputs(model, update.state, shape), expected, atol=1e-4, rtol=1e-4)

    served = FedMA(one_shot=one_shot).aggregate(model, updates).state
    torch.testing.assert_close(outputs(model, served, shape), expected, atol=1e-4, rtol=1e-4)
    averaged = FedAvg().aggregate(model, updates).state
    assert (outputs(model, averaged, shape) - expected).abs().max() > 0.1


@pytest.mark.parametrize("net", NETS)
def test_a_pass_over_permuted_copies_never_changes_what_a_client_computes(net, generator):
    make, shape = NETS[net]
    model = distinct(make(), generator)
    expected = outputs(model, dict(model.state_dict()), shape)
    stages, aggregator = read_plan(model, StateLayout(model)).stages, FedMA()
    starts = {k: permuted_copy(model, generator) for k in range(3)}
    for stage in range(len(stages)):
        assert aggregator.stage == stage
        served = aggregator.aggregate(model, [ClientUpdate(k, start, 1) for k, start in starts.items()]).state
        torch.testing.assert_close(outputs(model, served, shape), expected, atol=1e-4, rtol=1e-4)
        model.load_state_dict(served)
        starts = {k: start_of(aggregator, model, k) for k in starts}
        for start in starts.values():
            torch.testing.assert_close(outputs(model, start, shape), expected, atol=1e-4, rtol=1e-4)
            for layer in stages[: stage + 1]:
                assert all(torch.equal(start[name], served[name]) for name in layer.tensors)
    assert aggregator.stage == 0
    assert all(identical(start, dict(model.state_dict())) for start in starts.values())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_two_clients_agree_with_brute_force(weighting, generator):
    model = FullyConnected(inputs=3, hidden=(5,), num_classes=4)
    updates = random_updates(model, 2, generator)
    first, second = ({name: value.double().numpy() for name, value in update.state.items()} for update in updates)
    sizes = np.array([update.num_samples if weighting == "samples" else 1.0 for update in updates])
    p = sizes / sizes.sum()

    def rows(state):
        return np.column_stack([state["1.weight"], state["1.bias"]])

    orders = [list(order) for order in permutations(range(5))]
    best = min(orders, key=lambda order: ((rows(first) - rows(second)[order]) ** 2).sum())
    hidden = p[0] * rows(first) + p[1] * rows(second)[best]
    counts = np.stack([update.class_counts.numpy() for update in updates])
    q = counts / counts.sum(axis=0)
    head = q[0][:, None] * first["3.weight"] + q[1][:, None] * second["3.weight"][:, best]
    bias = q[0] * first["3.bias"] + q[1] * second["3.bias"]

    state = FedMA(one_shot=True).aggregate(model, updates, weighting=weighting).state
    expected = {"1.weight": hidden[:, :3], "1.bias": hidden[:, 3], "3.weight": head, "3.bias": bias}
    for name, value in expected.items():
        np.testing.assert_allclose(state[name].numpy(), value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("samples", [1, 17])
def test_a_single_client_is_served_bit_for_bit(net, samples, generator):
    model = NETS[net][0]()
    state = random_state(model, generator)
    update = ClientUpdate(3, state, samples, class_counts=torch.tensor([samples, 0, 0, 0]))
    aggregate = FedMA().aggregate(model, [update])
    assert identical(aggregate.state, state)
    assert aggregate.served_state is aggregate.state


def test_identical_clients_aggregate_to_that_client(generator):
    model = small_cnn()
    state = random_state(model, generator)
    result = FedMA().aggregate(model, [ClientUpdate(k, state, 3 + k) for k in range(5)]).state
    for name in state:
        torch.testing.assert_close(result[name], state[name], rtol=1e-7, atol=0)


@pytest.mark.parametrize("one_shot", [True, False])
def test_the_order_in_which_clients_finish_changes_nothing(one_shot, generator):
    model = small_mlp()
    updates = random_updates(model, 5, generator)
    aggregators = [FedMA(one_shot=one_shot) for _ in range(2)]
    first, second = (
        aggregator.aggregate(model, [updates[k] for k in order]).state
        for aggregator, order in zip(aggregators, [range(5), (3, 0, 4, 2, 1)], strict=True)
    )
    assert identical(first, second)
    for client in range(5):
        assert identical(*(aggregator.personal_state(client) for aggregator in aggregators))


def test_map_shrinks_the_matched_layers_but_not_the_last(generator):
    model = small_mlp()
    updates = random_updates(model, 3, generator)
    mean, shrunk = (FedMA(estimate=kind, one_shot=True).aggregate(model, updates).state for kind in ("mean", "map"))
    for name in ("1.weight", "1.bias", "3.weight", "3.bias"):
        torch.testing.assert_close(shrunk[name], mean[name] * 3 / 4)
    assert torch.equal(shrunk["5.weight"], mean["5.weight"])


def test_the_unit_of_a_class_that_nobody_holds_is_averaged_by_weight(generator):
    model = nn.Linear(3, 4)
    updates = random_updates(model, 2, generator)
    for update, counts in zip(updates, [[5, 0, 2, 0], [5, 3, 0, 0]], strict=True):
        update.class_counts = torch.tensor(counts)
    p = updates[0].num_samples / (updates[0].num_samples + updates[1].num_samples)
    share = torch.tensor([0.5, 0.0, 1.0, p])
    expected = share * updates[0].state["bias"] + (1 - share) * updates[1].state["bias"]
    torch.testing.assert_close(FedMA().aggregate(model, updates).state["bias"], expected)


@pytest.mark.parametrize("counts", [None, torch.tensor([1, 2])])
def test_without_usable_class_counts_the_last_layer_is_the_weighted_mean(counts, generator):
    model = nn.Linear(3, 4)
    updates = random_updates(model, 3, generator)
    updates[1].class_counts = counts
    expected = FedAvg().aggregate(model, updates).state
    for name, value in FedMA().aggregate(model, updates).state.items():
        torch.testing.assert_close(value, expected[name])


def test_a_client_that_missed_a_stage_starts_from_the_served_model(generator):
    model, aggregator = small_mlp(), FedMA()
    updates = random_updates(model, 3, generator)
    aggregator.aggregate(model, updates[:2])
    assert aggregator.personal_state(0)
    assert aggregator.personal_state(2) == {}
    aggregator.aggregate(model, updates[1:])
    assert aggregator.personal_state(0) == {}
    assert aggregator.personal_state(2).keys() == {"5.weight", "5.bias"}


def test_the_state_dict_restores_the_stage_and_the_holders(generator):
    model, aggregator, other = small_mlp(), FedMA(), FedMA()
    for _ in range(2):
        aggregator.aggregate(model, random_updates(model, 3, generator))
    other.load_state_dict(aggregator.state_dict())
    assert other.state_dict() == aggregator.state_dict() == {"stage": 2, "holders": [0, 1, 2]}


def test_buffers_and_counters_are_aggregated_as_in_fedavg(generator):
    model = small_mlp()
    model.register_buffer("mean", torch.zeros(2))
    model.register_buffer("steps", torch.tensor(0))
    updates = random_updates(model, 3, generator)
    state, expected = (aggregator.aggregate(model, updates).state for aggregator in (FedMA(), FedAvg()))
    assert torch.equal(state["mean"], expected["mean"])
    assert torch.equal(state["steps"], expected["steps"])


class Chain(Net):
    """Three layers, trained with momentum and weight decay, either of which could move a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 4))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


LAYERS = [
    ["layers.0.weight", "layers.0.bias"],
    ["layers.2.weight", "layers.2.bias"],
    ["layers.4.weight", "layers.4.bias"],
]


class Watch(RoundCallback):
    """Records the stage, the starts and the updates of every round."""

    def __init__(self) -> None:
        self.stages, self.starts, self.updates, self.losses = [], [], [], []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.stages.append(int(round.broadcast["stage"]))
        self.starts.append({client: round.start_of(client) for client in clients})
        self.updates.append({})

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.updates[-1][update.client] = update.state

    def on_validation_end(self, trainer, pl_module):
        self.losses.append(float(trainer.callback_metrics["val_loss"]))


def run(rounds, server=None, watch=None, **options):
    torch.manual_seed(0)
    server = server or FederatedServer(FedMA(), client=LocalTraining(epochs=2))
    federated, trainer = federate(
        Chain(), server=server, rounds=rounds, callbacks=[watch] if watch else (), num_sanity_val_steps=0, **options
    )
    return dict(federated.state_dict()), trainer


def test_two_passes_train_layer_by_layer():
    watch, server = Watch(), FederatedServer(FedMA(), client=LocalTraining(epochs=2))
    run(6, server, watch)
    assert watch.stages == [0, 1, 2, 0, 1, 2]
    assert server.aggregator.stage == 0
    assert watch.losses[5] < watch.losses[2] < watch.losses[0]
    for stage, starts, updates in zip(watch.stages, watch.starts, watch.updates, strict=True):
        for number, names in enumerate(LAYERS):
            for name in names:
                same = [torch.equal(starts[client][name], updates[client][name]) for client in range(4)]
                assert same == [number < stage] * 4, (stage, name)
                common = all(torch.equal(starts[0][name], starts[client][name]) for client in range(4))
                assert common == (stage == 0 or number < stage), (stage, name)
    assert all(server.aggregator.memory.get(client) == {} for client in range(4))


class Uploads(RoundCallback):
    """Records how many bytes each client of a round sent."""

    def __init__(self) -> None:
        self.sizes = []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.sizes.append([])

    def on_client_end(self, trainer, pl_module, round, update, weight):
        self.sizes[-1].append(update.num_bytes)


#: bytes of each layer of Chain: 6 * 9 + 9, 9 * 8 + 8 and 8 * 4 + 4 numbers
LAYER_BYTES = [4 * 63, 4 * 80, 4 * 36]


def test_a_client_sends_one_layer_per_round():
    uploads = Uploads()
    run(4, watch=uploads)
    assert uploads.sizes == [[size] * 4 for size in [*LAYER_BYTES, LAYER_BYTES[0]]]


def test_a_client_sends_all_layers_in_one_shot():
    uploads = Uploads()
    run(2, FederatedServer(FedMA(one_shot=True)), uploads)
    assert uploads.sizes == [[sum(LAYER_BYTES)] * 4] * 2


def test_a_mask_saves_bytes_of_the_layer_that_is_sent_only():
    uploads, mask = Uploads(), BernoulliMask(0.5)
    run(3, FederatedServer(FedMA(), transforms=[mask]), uploads)
    first, end = 0, 0
    for stage, sizes in zip(LAYER_BYTES, uploads.sizes, strict=True):
        first, end = end, end + stage // 4
        assert sizes == [4 * int(mask.mask(179, 0, client)[first:end].sum()) for client in range(4)]


def test_a_client_also_sends_the_statistics_that_training_changed():
    uploads = Uploads()
    federate(Net(batch_norm=True), server=FederatedServer(FedMA()), rounds=2, callbacks=[uploads])
    statistics = 4 * (8 + 8) + 8  # running mean and variance, and the counter
    hidden, norm, head = 4 * (6 * 8 + 8), 4 * (8 + 8), 4 * (8 * 4 + 4)
    assert uploads.sizes == [[hidden + norm + statistics] * 4, [head + statistics] * 4]


def test_one_shot_trains_all_layers_in_every_round():
    watch, server = Watch(), FederatedServer(FedMA(one_shot=True), client=LocalTraining(epochs=2))
    run(3, server, watch)
    assert watch.stages == [0, 0, 0]
    assert server.aggregator.memory.clients() == []
    assert watch.losses[-1] < watch.losses[0]
    for starts, updates in zip(watch.starts, watch.updates, strict=True):
        assert not any(torch.equal(starts[0][name], updates[0][name]) for names in LAYERS for name in names)


@pytest.mark.parametrize("begun", [1, 2, 4])
def test_a_pass_that_is_interrupted_and_resumed_ends_like_an_uninterrupted_one(begun, tmp_path):
    options = {"selection": RandomClients(count=3)}
    whole, _ = run(5, **options)
    _, trainer = run(begun, **options)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, _ = run(5, ckpt_path=tmp_path / "begun.ckpt", **options)
    assert identical(whole, resumed)


def test_keeping_the_clients_in_a_folder_changes_nothing(tmp_path):
    server = FederatedServer(FedMA(), client=LocalTraining(epochs=2), client_folder=str(tmp_path))
    assert identical(run(4, server)[0], run(4)[0])


def test_two_processes_give_the_same_result_as_one():
    options = {"selection": RandomClients(count=3)}
    one, _ = run(4, **options)
    two, _ = run(4, strategy="ddp_fork", devices=2, **options)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


def test_clients_with_one_sample_each_can_take_part():
    state, _ = run(3, source=Blobs(samples=4), partition=IID(num_clients=4))
    assert all(value.isfinite().all() for value in state.values())


class Unfreeze(Callback):
    def on_train_start(self, trainer, pl_module):
        pl_module.requires_grad_(True)


class Nudge(Callback):
    def on_train_batch_end(self, trainer, pl_module, *args):
        with torch.no_grad():
            pl_module.layers[0].bias.add_(1)


def updates_with(meddlers):
    watch = Watch()
    run(2, FederatedServer(FedMA(), client=LocalTraining(callbacks=meddlers)), watch)
    return watch.starts[1], watch.updates[1]


@pytest.mark.parametrize("meddler", [Unfreeze(), Nudge()])
def test_frozen_layers_stay_the_same_whatever_another_callback_does(meddler):
    starts, updates = updates_with([meddler])
    for client, start in starts.items():
        assert all(torch.equal(start[name], updates[client][name]) for name in LAYERS[0])


def test_frozen_layers_do_not_move_temporarily_either():
    _, expected = updates_with([])
    _, updates = updates_with([Unfreeze()])
    assert all(identical(updates[client], expected[client]) for client in expected)


class Breaks(Chain):
    def training_step(self, batch, batch_idx):
        assert not self.layers[0].weight.requires_grad
        raise RuntimeError("broken")


def test_layers_are_trainable_again_after_an_error():
    model, callback = Breaks(), StagedLayers(LAYERS, [[], [], []])
    callback.round = Round(1, None, 0, start={}, broadcast={"stage": torch.tensor(2)})
    with pytest.raises(RuntimeError, match="broken"):
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(model, Blobs())
    assert all(parameter.requires_grad for parameter in model.parameters())


class Branching(nn.Sequential):
    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum() > 0 else inputs


class Forgetful(nn.Sequential):
    def forward(self, inputs):
        return self[0](inputs)


def shuffled_units() -> nn.Module:
    """Return a net whose hidden units are told apart by their places."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Flatten(), nn.Linear(16, 2))


REFUSED = {
    "branches": (lambda: Branching(nn.Linear(3, 4)), "torch.fx cannot trace Branching.forward"),
    "no forward": (ConvNet, "torch.fx cannot trace ConvNet.forward"),
    "unused": (lambda: Forgetful(nn.Linear(3, 4), nn.Linear(4, 2)), r"Forgetful.forward does not use 1\.weight"),
    "places": (shuffled_units, "all units of Sequential keep their places, because they reach 1,"),
    "nothing": (nn.ReLU, "ReLU has no layer with weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_architecture_is_refused_with_the_reason(case):
    make, message = REFUSED[case]
    with pytest.raises(MisconfigurationError, match=message) as refusal:
        FedMA().prepare(make(), Federation(num_clients=4, seed=0))
    assert "\n" not in str(refusal.value)
    model = make()
    with pytest.raises(MisconfigurationError, match=message):
        FedMA().begin_round(model, Round(0, None, 0, dict(model.state_dict())))


def test_a_run_with_an_unsupported_architecture_is_refused_before_training():
    class Bare(Net):
        def forward(self, inputs):
            return super().forward(inputs) if inputs.sum() > 0 else inputs

        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    with pytest.raises(MisconfigurationError, match=r"cannot trace Bare\.forward"):
        federate(Bare(), server=FederatedServer(FedMA()), num_sanity_val_steps=0)


def test_shrinking_is_refused_if_running_statistics_would_no_longer_fit():
    with pytest.raises(MisconfigurationError, match=r"estimate=map, but layers\.1\.running_mean"):
        FedMA(estimate="map").prepare(Net(batch_norm=True), Federation(num_clients=4, seed=0))


def test_layers_with_weights_that_are_not_finite_are_named(generator):
    model = small_mlp()
    updates = random_updates(model, 3, generator)
    updates[1].state["3.bias"][0] = torch.nan
    with pytest.raises(MisconfigurationError, match="layer 3 of client 1 is not finite"):
        FedMA().aggregate(model, updates)


@pytest.mark.parametrize(
    "argument", [{"sigma": 0}, {"sigma0": -1}, {"gamma": 0}, {"sweeps": -1}, {"estimate": "median"}, {"max_width": 0}]
)
def test_impossible_arguments_are_refused(argument):
    with pytest.raises(MisconfigurationError, match=f"{next(iter(argument))}="):
        FedMA(**argument)
