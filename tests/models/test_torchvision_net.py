from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torchvision.models import get_model, get_model_weights

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.models import TorchvisionNet

# The width of the head's input, and how many weights a CIFAR stem removes from the first convolution.
NETS = {
    "resnet18": (512, 64 * 3 * (49 - 9)),
    "resnet50": (2048, 64 * 3 * (49 - 9)),
    "densenet121": (1024, 64 * 3 * (49 - 9)),
    "mobilenet_v2": (1280, 0),
}


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """Return the folder of torch hub's weights, empty and without network access."""

    def refuse(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("cifar_stem", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_a_network_has_as_many_parameters_as_torchvision_documents_except_in_head_and_stem(name, cifar_stem):
    width, fewer = NETS[name]
    documented = get_model_weights(name).DEFAULT.meta["num_params"]
    with torch.device("meta"):
        net = TorchvisionNet(name, num_classes=7, cifar_stem=cifar_stem)
    expected = documented - 993 * (width + 1) - (fewer if cifar_stem else 0)
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


@pytest.mark.parametrize("name", NETS)
def test_the_tensors_have_torchvisions_names(name):
    with torch.device("meta"):
        assert list(TorchvisionNet(name, cifar_stem=True).state_dict()) == list(get_model(name).state_dict())


@pytest.mark.parametrize(("cifar_stem", "side"), [(False, 1), (True, 4)])
@pytest.mark.parametrize("name", NETS)
def test_a_cifar_stem_shrinks_images_four_times_less(name, cifar_stem, side):
    net = TorchvisionNet(name, cifar_stem=cifar_stem).eval()
    seen = []
    last = net.layer4 if name.startswith("resnet") else net.features
    last.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[2:]))
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert seen == [(side, side)]


@pytest.mark.parametrize("name", NETS)
def test_every_network_trains_on_small_images(name):
    net = TorchvisionNet(name, cifar_stem=True)
    net(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())


def test_resnet18_takes_tiny_imagenets_images():
    assert TorchvisionNet("resnet18", num_classes=200)(torch.zeros(2, 3, 64, 64)).shape == (2, 200)


def test_weights_with_another_number_of_classes_are_loaded_except_for_the_head(tmp_path):
    given = get_model("mobilenet_v2", num_classes=12).state_dict()
    torch.save(given, tmp_path / "given.pth")
    state = TorchvisionNet("mobilenet_v2", num_classes=10, weights=str(tmp_path / "given.pth")).state_dict()
    assert state["classifier.1.weight"].shape == (10, 1280)
    assert all(torch.equal(state[key], given[key]) for key in given if not key.startswith("classifier"))


def test_weights_with_the_same_number_of_classes_are_loaded_completely(tmp_path):
    given = get_model("mobilenet_v2", num_classes=10).state_dict()
    torch.save(given, tmp_path / "given.pth")
    state = TorchvisionNet("mobilenet_v2", cifar_stem=True, weights=str(tmp_path / "given.pth")).state_dict()
    assert all(torch.equal(state[key], given[key]) for key in given)


def test_torchvisions_weights_are_found_in_torch_hubs_folder(hub):
    given = get_model("mobilenet_v2").state_dict()
    weights = get_model_weights("mobilenet_v2").IMAGENET1K_V2
    torch.save(given, hub / weights.url.rpartition("/")[2])
    state = TorchvisionNet("mobilenet_v2", weights="IMAGENET1K_V2").state_dict()
    assert torch.equal(state["features.0.0.weight"], given["features.0.0.weight"])


def test_the_old_names_of_torchvisions_densenet_files_are_understood(hub):
    given = get_model("densenet121").state_dict()
    old = {
        key.replace("norm1", "norm.1").replace("norm2", "norm.2").replace("conv1", "conv.1").replace("conv2", "conv.2")
        if "denselayer" in key
        else key: value
        for key, value in given.items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save(old, hub / get_model_weights("densenet121").DEFAULT.url.rpartition("/")[2])
    net = TorchvisionNet("densenet121", num_classes=1000, weights="DEFAULT")
    assert all(torch.equal(value, given[key]) for key, value in net.state_dict().items())


def test_without_network_access_an_error_names_the_missing_file_and_its_url(hub):
    with pytest.raises(MisconfigurationError) as raised:
        TorchvisionNet("mobilenet_v2", weights="IMAGENET1K_V2")
    message = str(raised.value)
    assert str(hub / "mobilenet_v2-7ebf99e0.pth") in message
    assert "https://download.pytorch.org/models/mobilenet_v2-7ebf99e0.pth" in message
    assert "\n" not in message


def test_a_file_that_was_cut_off_is_named(tmp_path):
    file = tmp_path / "cut.pth"
    torch.save(get_model("mobilenet_v2").state_dict(), file)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(MisconfigurationError, match=r"cut\.pth is not a state dict, or is truncated") as raised:
        TorchvisionNet("mobilenet_v2", weights=str(file))
    assert "\n" not in str(raised.value)


def test_weights_that_a_cifar_stem_cannot_take_are_refused(tmp_path):
    torch.save(get_model("resnet18").state_dict(), tmp_path / "imagenet.pth")
    with pytest.raises(MisconfigurationError, match=r"cifar_stem=true \(size mismatch for conv1") as raised:
        TorchvisionNet("resnet18", cifar_stem=True, weights=str(tmp_path / "imagenet.pth"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "name=resnet19, but torchvision has no such classifier"),
        (
            {"name": "shufflenet_v2_x0_5", "cifar_stem": True},
            "shufflenet_v2_x0_5 is not a ResNet, DenseNet or MobileNetV2",
        ),
        (
            {"name": "resnet18", "weights": "V9"},
            "V9 is neither a file nor .*set weights to IMAGENET1K_V1, DEFAULT or to the path",
        ),
    ],
)
def test_a_mistake_is_refused_with_a_fix(arguments, message):
    with pytest.raises(MisconfigurationError, match=message):
        TorchvisionNet(**arguments)
