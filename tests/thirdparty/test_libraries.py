"""Models of six libraries, unedited. Run them with ``make test-thirdparty``."""

import importlib
import sys

import lightning as L  # noqa: N812
import pytest
import torch
from torch.utils.data import DataLoader

from fl_lightning import FederatedDataModule, FederatedModule, FederatedServer
from fl_lightning._lightning.package import PACKAGE
from fl_lightning.core.randomness import seed_for, seed_global_generators
from fl_lightning.data import IID

SEED = 5
LIBRARIES = ["chemprop", "peft", "pytorch_forecasting", "torch_geometric", "torchgeo", "transformers"]


class Source(L.LightningDataModule):
    """The library's loader, as a data module."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> DataLoader:
        return self.loader

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.loader.dataset, batch_size=8, collate_fn=self.loader.collate_fn)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return importlib.import_module(f"tests.thirdparty.libraries.{request.param}")


def new_module(library) -> L.LightningModule:
    L.seed_everything(SEED, verbose=False)
    return library.module()


def new_data(library, clients: int) -> FederatedDataModule:
    return FederatedDataModule(Source(library.loader()), IID(clients), seed=SEED)


def fit(module: L.LightningModule, rounds: int, callbacks=(), **data) -> L.Trainer:
    flags = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    flags |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "accelerator": "cpu", "devices": 1}
    trainer = L.Trainer(max_epochs=rounds, callbacks=list(callbacks), **flags)
    trainer.fit(module, **data)
    return trainer


def test_a_round_of_one_client_equals_an_epoch_of_a_plain_trainer(library):
    federated = FederatedModule(new_module(library))
    fit(federated, 1, [FederatedServer()], datamodule=new_data(library, clients=1))

    data = new_data(library, clients=1)
    data.setup("fit")
    plain = new_module(library)
    start = {name: value.clone() for name, value in plain.state_dict().items()}
    seed_global_generators(seed_for("client", SEED, 0, 0))
    fit(plain, 1, train_dataloaders=data.client_loader(0, 0), val_dataloaders=data.val_dataloader())

    expected, found = plain.state_dict(), federated.module.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert any(not torch.equal(start[name], expected[name]) for name in expected), "the plain Trainer trained nothing"


def test_two_clients_train_for_two_rounds(library):
    module = new_module(library)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = fit(FederatedModule(module), 2, [FederatedServer()], datamodule=new_data(library, clients=2))
    assert trainer.current_epoch == 2
    assert any(not torch.equal(start[name], value) for name, value in module.state_dict().items())
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_the_libraries_and_this_package_use_lightning_only():
    for name in LIBRARIES:
        importlib.import_module(f"tests.thirdparty.libraries.{name}")
    assert PACKAGE == "lightning.pytorch"
    assert "pytorch_lightning" not in sys.modules
