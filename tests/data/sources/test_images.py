import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningArgumentParser
from torch import nn
from torchvision.transforms.v2 import functional

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import (
    CIFAR10,
    IID,
    MNIST,
    Digits,
    FashionMNIST,
    ImageFolder,
    Sentiment140,
    TinyImageNet,
)
from fl_lightning.data.sources.images import crop_and_flip, normalise
from tests.data.files import bytes_of, write_mnist
from tests.toys import federate, quiet_trainer

SEEN: list[tuple[str, torch.Tensor, torch.Tensor]] = []


class Watcher(LightningModule):
    """A module that records its batches in a global list, because clients are copies of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def see(self, stage: str, batch) -> torch.Tensor:
        inputs, labels = batch
        SEEN.append((stage, inputs.clone(), labels.clone()))
        return nn.functional.cross_entropy(self.layer(inputs.flatten(1)), labels)

    def training_step(self, batch, batch_idx):
        return self.see("train", batch)

    def validation_step(self, batch, batch_idx):
        self.see("val", batch)

    def test_step(self, batch, batch_idx):
        self.see("test", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def seen(stage: str) -> np.ndarray:
    """Return all inputs of a stage, sorted."""
    return ordered(torch.cat([inputs for name, inputs, _ in SEEN if name == stage]).numpy())


def ordered(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1)
    return flat[np.lexsort(flat[:, :8].T)]


def expected(pixels: np.ndarray) -> np.ndarray:
    """Return the pixels with MNIST's normalisation, in float64 and sorted."""
    return ordered((pixels.astype(np.float64) / 255 - 0.1307) / 0.3081)


@pytest.fixture
def mnist(tmp_path):
    SEEN.clear()
    return write_mnist(tmp_path / "MNIST" / "raw")


def test_a_plain_lightning_module_gets_normalised_floats(mnist, tmp_path):
    source = MNIST(tmp_path, batch_size=7)
    trainer = quiet_trainer(max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(Watcher(), source)
    trainer.test(Watcher(), source, verbose=False)
    assert seen("train").dtype == np.float32
    np.testing.assert_allclose(seen("train"), expected(mnist["train-images-idx3-ubyte"]), atol=1e-5)
    for stage in ("val", "test"):
        np.testing.assert_allclose(seen(stage), expected(mnist["t10k-images-idx3-ubyte"]), atol=1e-5)


def test_clients_and_the_global_model_get_normalised_floats(mnist, tmp_path):
    _, trainer = federate(Watcher(), MNIST(tmp_path, batch_size=7), rounds=1, num_sanity_val_steps=0)
    assert trainer.datamodule.data.tensors[0].dtype == torch.uint8
    np.testing.assert_allclose(seen("train"), expected(mnist["train-images-idx3-ubyte"]), atol=1e-5)
    np.testing.assert_allclose(seen("val"), expected(mnist["t10k-images-idx3-ubyte"]), atol=1e-5)


def test_the_clients_data_excludes_the_validation_part(mnist, tmp_path):
    source = MNIST(tmp_path, batch_size=7, validation_fraction=0.25)
    federate(Watcher(), source, rounds=1, num_sanity_val_steps=0)
    assert len(seen("train")) == 30
    assert len(seen("val")) == 10
    np.testing.assert_allclose(
        ordered(np.concatenate([seen("train"), seen("val")])), expected(mnist["train-images-idx3-ubyte"]), atol=1e-5
    )


def test_augmentation_differs_between_rounds_but_not_between_runs(mnist, tmp_path):
    def run() -> tuple[np.ndarray, np.ndarray]:
        SEEN.clear()
        server = FederatedServer(client=LocalTraining(epochs=1))
        federate(Watcher(), MNIST(tmp_path, augment=True), server=server, rounds=2, num_sanity_val_steps=0)
        return seen("train"), seen("val")

    train, validation = run()
    again, _ = run()
    np.testing.assert_array_equal(train, again)
    assert len(np.unique(train, axis=0)) > 70  # of 80
    plain = expected(mnist["t10k-images-idx3-ubyte"])
    np.testing.assert_allclose(validation, ordered(np.concatenate([plain, plain])), atol=1e-5)


def test_inputs_have_the_precision_of_the_trainer(mnist, tmp_path):
    quiet_trainer(max_epochs=1, precision="64-true").fit(Watcher(), MNIST(tmp_path))
    assert {inputs.dtype for _, inputs, _ in SEEN} == {torch.float64}


def test_images_are_normalised_as_torchvision_does_it():
    images = torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.25)
    expected = functional.normalize(functional.to_dtype(images, torch.float32, scale=True), list(mean), list(std))
    assert torch.equal(normalise(images, mean, std), expected)


def test_a_channel_that_never_changes_is_refused():
    with pytest.raises(MisconfigurationError, match=r"std=\(0\.2, 0\.0\)"):
        normalise(torch.zeros(1, 2, 3, 3, dtype=torch.uint8), (0.1, 0.0), (0.2, 0.0))


def test_every_channel_is_normalised_separately():
    pixels = bytes_of((5, 3, 4, 6))
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    shape = (1, 3, 1, 1)
    right = (pixels / 255 - np.reshape(mean, shape)) / np.reshape(std, shape)
    np.testing.assert_allclose(normalise(torch.from_numpy(pixels), mean, std).numpy(), right, atol=1e-6)


def test_augmented_images_are_crops_of_the_padded_image_and_may_be_flipped():
    pixels = bytes_of((3, 10, 12))
    pixels[pixels == 0] = 1
    padded = np.pad(pixels, ((0, 0), (4, 4), (4, 4)))
    crops = [padded[:, top : top + 10, left : left + 12] for top in range(9) for left in range(9)]
    possible = {crop.tobytes() for crop in crops} | {crop[:, :, ::-1].tobytes() for crop in crops}
    assert len(possible) == 162
    drawn = crop_and_flip(torch.from_numpy(pixels).expand(4000, -1, -1, -1))
    assert drawn.shape == (4000, 3, 10, 12)
    assert drawn.dtype == torch.uint8
    assert {image.numpy().tobytes() for image in drawn} == possible


def test_every_image_of_a_batch_is_augmented_independently_and_stays_in_its_place():
    images = torch.arange(1, 101, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 9, 9)
    drawn = crop_and_flip(images)
    assert drawn.amax(dim=(1, 2, 3)).tolist() == list(range(1, 101))
    assert len(torch.unique((drawn > 0).flatten(1), dim=0)) > 20


def test_augmentation_uses_torchs_global_generator():
    images = torch.from_numpy(bytes_of((6, 1, 8, 8)))
    first, second = crop_and_flip(images), crop_and_flip(images)
    torch.manual_seed(0)
    again = crop_and_flip(images)
    torch.manual_seed(0)
    assert torch.equal(again, crop_and_flip(images))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "source", [Digits, MNIST, FashionMNIST, CIFAR10, ImageFolder, TinyImageNet, Sentiment140], ids=lambda s: s.__name__
)
def test_short_names_of_sources_are_enough_in_yaml(source):
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(FederatedDataModule, "data")
    arguments = {"batch_size": 5, "train_fraction": 0.8, "evaluation_batch_size": 7}
    arguments |= {} if source is Digits else {"root": "somewhere"}
    config = parser.parse_object(
        {
            "data": {
                "source": {"class_path": source.__name__, "init_args": arguments},
                "partition": {"class_path": "IID", "init_args": {"num_clients": 3}},
            }
        }
    )
    assert parser.parse_string(parser.dump(config)) == config
    data = parser.instantiate(config).data
    assert type(data.source) is source
    assert (data.source.batch_size, data.source.evaluation_batch_size) == (5, 7)
    assert type(data.partition) is IID
