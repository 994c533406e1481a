import jsonargparse
import pytest
import torch
from torch import nn

import fl_lightning.models
from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedNS
from fl_lightning.aggregation.fedma.plan import read_plan
from fl_lightning.core.state import StateLayout
from fl_lightning.models import (
    MLR,
    AlexNet32,
    BiLSTM,
    CifarCNN,
    Classifier,
    DigitsCNN,
    FedAdpCNN,
    FedNSCNN,
    FourLayerCNN,
    FullyConnected,
    LeNet,
    MnistCNN,
    TorchvisionNet,
)

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return (inputs * kernel**2 + 1) * outputs


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


FEDNNNN_TABLE_4 = (
    sum(conv(*layer, 3) for layer in [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)])
    + 2 * (32 + 32 + 64 + 64 + 128 + 128)
    + linear(128 * 4 * 4, 382)
    + linear(382, 192)
    + linear(192, 10)
)
FEDNS = conv(1, 32, 5) + conv(32, 64, 5) + linear(64 * 4 * 4, 1024) + linear(1024, 256) + linear(256, 10)
LENET_HEAD = conv(6, 16, 5) + 2 * (6 + 16) + linear(16 * 5 * 5, 120) + linear(120, 84) + linear(84, 10)
FOUR_LAYERS = conv(32, 64, 3) + 2 * (32 + 64) + linear(512, 10)

NETS = {
    "MLR": (MLR, GREY, 784 * 10 + 10),
    "FullyConnected": (FullyConnected, GREY, linear(784, 200) + linear(200, 10)),
    "FullyConnected, deeper": (lambda: FullyConnected(64, (9, 8), 10), (1, 8, 8), 65 * 9 + 10 * 8 + 9 * 10),
    "DigitsCNN": (DigitsCNN, (1, 8, 8), conv(1, 16, 3) + conv(16, 32, 3) + linear(512, 64) + linear(64, 10)),
    "MnistCNN": (MnistCNN, GREY, 431_080),  # FedNNNN, Table 3
    "CifarCNN": (CifarCNN, COLOUR, FEDNNNN_TABLE_4),
    "FedAdpCNN": (FedAdpCNN, GREY, 1_663_370),  # FedAdp, footnote 4
    "FedNSCNN": (FedNSCNN, GREY, FEDNS),
    "AlexNet32": (AlexNet32, COLOUR, 23_272_266),
    "LeNet": (LeNet, GREY, conv(1, 6, 5) + LENET_HEAD),
    "LeNet, colour": (lambda: LeNet(32, 3), COLOUR, conv(3, 6, 5) + LENET_HEAD),
    "LeNet, larger": (lambda: LeNet(64, 3), (3, 64, 64), conv(3, 6, 5) + LENET_HEAD + 16 * (13 * 13 - 25) * 120),
    "FourLayerCNN": (FourLayerCNN, COLOUR, conv(3, 32, 3) + FOUR_LAYERS + linear(64 * 8 * 8, 512)),
    "FourLayerCNN, grey": (lambda: FourLayerCNN(28, 1), GREY, conv(1, 32, 3) + FOUR_LAYERS + linear(64 * 7 * 7, 512)),
    "BiLSTM": (lambda: BiLSTM(50, 7, 5, 10), None, 50 * 7 + 2 * 4 * 5 * (7 + 5 + 2) + 2 * 10 + linear(10, 10)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_network_has_the_number_of_parameters_of_its_layers(name):
    make, _, expected = NETS[name]
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in make().parameters()) == expected


CHOICES = [(name, "batch") for name in NETS] + [
    (name, normalisation)
    for name in ("CifarCNN", "LeNet", "LeNet, colour", "FourLayerCNN", "BiLSTM")
    for normalisation in ("group", "layer", "none")
]


@pytest.mark.parametrize(("name", "normalisation"), CHOICES)
def test_a_network_trains_with_every_normalisation(name, normalisation):
    torch.manual_seed(1)
    make, shape, _ = NETS[name]
    module = Classifier(make(), normalisation=normalisation)
    inputs = torch.randint(1, 50, (3, 6)) if shape is None else torch.randn(3, *shape)
    loss = module.training_step([inputs, torch.tensor([0, 4, 9])], 0)
    loss.backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in module.parameters())
    assert module(inputs).shape == (3, 10)


def test_lenet_sees_28_by_28_images_as_32_by_32_ones():
    torch.manual_seed(1)
    small, large = LeNet(28).eval(), LeNet(32).eval()
    large.load_state_dict(small.state_dict())
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(small(images), large(nn.functional.pad(images, (2, 2, 2, 2))))


@pytest.mark.parametrize("name", sorted(set(fl_lightning.models.__all__) - {"Classifier", "with_normalisation"}))
def test_the_short_name_of_a_network_is_enough_in_yaml(name):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--net", type=nn.Module)
    arguments = ["--net.name=resnet18"] if name == "TorchvisionNet" else []
    config = parser.parse_args([f"--net={name}", *arguments])
    assert config.net.class_path == f"fl_lightning.models.{name}"


@pytest.mark.parametrize("make", [LeNet, FourLayerCNN, MnistCNN, CifarCNN, FedAdpCNN, FedNSCNN, MLR])
@pytest.mark.parametrize("normalisation", ["batch", "layer", "none"])
def test_fedma_matches_every_layer_of_a_chain_but_the_last(make, normalisation):
    model = Classifier(make(), normalisation=normalisation)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    plan = read_plan(model, StateLayout(model))
    assert [stage.layer for stage in plan.stages] == layers
    assert [len(stage.groups) for stage in plan.stages] == [1] * (len(layers) - 1) + [0]


def updates(model: nn.Module, class_counts: list[list[int]]) -> list[ClientUpdate]:
    """Return updates of clients that differ by random noise."""
    torch.manual_seed(2)
    states = [
        {key: value + torch.randn_like(value) if value.is_floating_point() else value for key, value in state.items()}
        for state in [model.state_dict()] * len(class_counts)
    ]
    return [
        ClientUpdate(client=client, state=state, num_samples=sum(counts), class_counts=torch.tensor(counts))
        for client, (state, counts) in enumerate(zip(states, class_counts, strict=True))
    ]


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (FedNSCNN, "net.11"),
        (LeNet, "net.13"),
        (lambda: TorchvisionNet("shufflenet_v2_x0_5"), "net.fc"),
        (lambda: BiLSTM(20, num_classes=10), "net.head"),
    ],
)
def test_fedns_takes_the_head_weights_of_a_class_from_its_only_owner(make, head):
    model = Classifier(make())
    clients = updates(model, [[9] + [1] * 9, [0] + [5] * 9])
    served = FedNS().aggregate(model, clients).served_state
    torch.testing.assert_close(served[f"{head}.weight"][0], clients[0].state[f"{head}.weight"][0])
