"""FedMA on nets whose units are tied together: permuted copies compute the same function, and are recovered."""

import pytest
import torch
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedAvg, FedMA
from fl_lightning.aggregation.fedma.plan import read_plan
from fl_lightning.core.state import StateLayout
from fl_lightning.models import TorchvisionNet
from tests.aggregation.fedma.nets import IMAGES, NETS, outputs, permuted_copy, randomized

each_net = pytest.mark.parametrize("net", NETS)


def plan_of(model: nn.Module):
    return read_plan(model, StateLayout(model))


def check_permuted_copies_are_recovered(model, inputs, clients, **options):
    model = randomized(model)
    plan = plan_of(model)
    expected = outputs(model, model.state_dict(), inputs)
    updates = [ClientUpdate(k, permuted_copy(model, plan, seed=k), 10 + k) for k in range(clients)]
    tolerance = 1e-5 * float(expected.abs().max().clamp(min=1))
    for update in updates:
        torch.testing.assert_close(outputs(model, update.state, inputs), expected, rtol=0, atol=tolerance)
    served = FedMA(**options).aggregate(model, updates).state
    torch.testing.assert_close(outputs(model, served, inputs), expected, rtol=0, atol=tolerance)
    averaged = FedAvg().aggregate(model, updates).state
    assert (outputs(model, averaged, inputs) - expected).abs().max() > 100 * tolerance


@each_net
@pytest.mark.parametrize("one_shot", [True, False])
def test_permuted_copies_of_a_net_are_recovered(net, one_shot):
    make, inputs, _ = NETS[net]
    check_permuted_copies_are_recovered(make(), inputs, clients=4, one_shot=one_shot)


@each_net
def test_units_that_are_tied_together_form_one_group(net):
    make, _, widths = NETS[net]
    plan = plan_of(make())
    assert plan.widths == widths
    assert plan.anchored == {}


@each_net
def test_a_pass_over_permuted_copies_never_changes_what_a_client_computes(net):
    make, inputs, _ = NETS[net]
    model, aggregator = randomized(make()), FedMA()
    expected, plan = outputs(model, model.state_dict(), inputs), plan_of(model)
    starts = {k: permuted_copy(model, plan, seed=k) for k in range(3)}
    for _ in plan.stages:
        served = aggregator.aggregate(model, [ClientUpdate(k, start, 1) for k, start in starts.items()]).state
        model.load_state_dict(served)
        starts = {k: {**served, **aggregator.personal_state(k)} for k in starts}
        for start in [served, *starts.values()]:
            torch.testing.assert_close(outputs(model, start, inputs), expected, rtol=1e-4, atol=1e-4)
    assert aggregator.stage == 0


@each_net
def test_a_single_client_is_served_bit_for_bit(net):
    model = randomized(NETS[net][0]())
    other = randomized(NETS[net][0]())
    state = FedMA().aggregate(other, [ClientUpdate(3, model.state_dict(), 17)]).state
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def summed(*layers):
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = layers

        def forward(self, inputs):
            return self.head(inputs + self.second(self.first(inputs)))

    return Summed()


def frozen_first() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    return model


def grouped(groups: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 1), nn.GroupNorm(groups, 6), nn.Flatten(), nn.Linear(96, 2)
    )


ANCHORED = {
    "added to the inputs": (lambda: summed(nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2)), "second", [4]),
    "frozen": (frozen_first, "0", [5]),
    "groups of units": (lambda: grouped(2), "1", [4]),
    "grouped convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 3, 1), nn.Conv2d(3, 2, 2)),
        "0",
        [3],
    ),
    "used twice": (
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2, nn.ReLU(), nn.Linear(4, 5), nn.Linear(5, 2)),
        "0",
        [5],
    ),
}


@pytest.mark.parametrize("case", ANCHORED)
def test_units_that_are_tied_to_their_places_keep_them_while_others_move(case):
    make, layer, widths = ANCHORED[case]
    plan = plan_of(make())
    assert layer in plan.anchored
    assert plan.widths == widths


class Gated(nn.Module):
    """Uses a parameter in another shape, and normalises without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(36, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.norm, self.gate = nn.LayerNorm(5, elementwise_affine=False), nn.Parameter(torch.randn(2, 2))

    def forward(self, images):
        hidden = self.norm(self.first(images.flatten(1)))
        return self.head(torch.tanh(self.second(hidden)) * self.gate.view(-1))


def test_a_parameter_that_changes_its_shape_ties_units_to_their_places():
    plan = plan_of(Gated())
    assert plan.widths == [5]
    assert list(plan.anchored) == ["second"]
    check_permuted_copies_are_recovered(Gated(), IMAGES, clients=3)


@pytest.mark.parametrize(("groups", "widths"), [(1, [4, 6]), (6, [4, 6])])
def test_units_move_through_a_group_norm_with_one_group_or_one_unit_per_group(groups, widths):
    assert plan_of(grouped(groups)).widths == widths


@pytest.mark.parametrize(
    ("name", "stages", "groups"), [("resnet18", 21, 12), ("mobilenet_v2", 53, 25), ("densenet121", 121, 120)]
)
def test_the_nets_of_feddna_are_matched_completely(name, stages, groups):
    # ResNet-18: a stream per resolution (4) and a hidden layer per block (8). MobileNetV2: the stem with the first
    # depthwise layer, an expansion in 16 of 17 blocks, seven streams, and the last convolution. DenseNet-121: every
    # convolution is read by others, but none is added.
    plan = plan_of(TorchvisionNet(name))
    assert (len(plan.stages), len(plan.widths), plan.anchored) == (stages, groups, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "densenet121"])
def test_permuted_copies_of_the_nets_of_feddna_are_recovered(name):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    check_permuted_copies_are_recovered(TorchvisionNet(name, cifar_stem=True), images, clients=3, one_shot=True)
