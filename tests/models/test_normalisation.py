import copy

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.convnext import LayerNorm2d

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.models import BiLSTM, LeNet, TorchvisionNet, with_normalisation

GENERATOR = np.random.default_rng(5)


def normalised(values: np.ndarray, groups: int) -> np.ndarray:
    """Normalise every sample and group of channels (dimension 1) separately."""
    grouped = values.reshape(len(values), groups, -1)
    scaled = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    return scaled.reshape(values.shape)


@pytest.mark.parametrize(("kind", "groups"), [("group", 2), ("layer", 1)])
@pytest.mark.parametrize(("norm", "shape"), [(nn.BatchNorm2d(6), (3, 6, 4, 4)), (nn.BatchNorm1d(6), (3, 6))])
def test_batch_norm_is_replaced_by_a_norm_of_each_sample_over_groups_of_channels(norm, shape, kind, groups):
    values = GENERATOR.normal(size=shape)
    net = with_normalisation(nn.Sequential(norm).double(), kind)
    np.testing.assert_allclose(net(torch.tensor(values)).detach().numpy(), normalised(values, groups), atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (3, 5, 6)])
def test_layer_norm_is_replaced_by_a_norm_of_each_vector_over_groups(shape):
    values = GENERATOR.normal(size=shape)
    net = with_normalisation(nn.Sequential(nn.LayerNorm(6)).double(), "group")
    expected = normalised(values.reshape(-1, 6), 2).reshape(shape)
    np.testing.assert_allclose(net(torch.tensor(values)).detach().numpy(), expected, atol=1e-12)


def test_fed_gn_normalises_the_two_directions_of_the_bilstm_separately():
    torch.manual_seed(2)
    net = with_normalisation(BiLSTM(9, 4, 3), "group")
    ends = torch.randn(5, 6)
    torch.testing.assert_close(net.norm(ends)[:, :3], nn.functional.layer_norm(ends[:, :3], (3,)))


def test_layer_norm_is_kept_by_the_choice_layer_and_removed_by_the_choice_none():
    assert isinstance(with_normalisation(BiLSTM(9), "layer").norm, nn.LayerNorm)
    assert isinstance(with_normalisation(BiLSTM(9), "none").norm, nn.Identity)


def test_the_choice_batch_leaves_the_network_unchanged():
    assert [type(layer) for layer in with_normalisation(LeNet(), "batch")] == [type(layer) for layer in LeNet()]


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_learnt_scales_and_shifts_are_kept(kind):
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    (new,) = with_normalisation(nn.Sequential(norm), kind)
    assert new.weight is norm.weight
    assert new.bias is norm.bias


@pytest.fixture(scope="module", params=["resnet18", "resnet50", "densenet121", "mobilenet_v2"])
def torchvision_net(request) -> nn.Module:
    """Make every network once, because that takes longer than to copy it; only one is in memory."""
    return TorchvisionNet(request.param)


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", ["group", "layer", "none"])
def test_torchvisions_networks_train_without_batch_norm(torchvision_net, kind):
    torch.manual_seed(1)
    net = with_normalisation(copy.deepcopy(torchvision_net), kind)
    net(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(value.grad.isfinite().all() for value in net.parameters())
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (nn.BatchNorm2d(5), "a layer has 5 channels: set normalisation to layer"),
        (nn.LayerNorm(5), r"LayerNorm\(\(5,\).*set normalisation to batch"),
        (nn.LayerNorm((4, 6)), r"LayerNorm\(\(4, 6\).*set normalisation to batch"),
        (LayerNorm2d(6), "LayerNorm2d.*set normalisation to batch"),
    ],
)
def test_layers_that_cannot_be_grouped_are_refused(norm, message):
    with pytest.raises(MisconfigurationError, match=message):
        with_normalisation(nn.Sequential(norm), "group")


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(MisconfigurationError, match="'instance': set normalisation to batch, group, layer or none"):
        with_normalisation(LeNet(), "instance")
