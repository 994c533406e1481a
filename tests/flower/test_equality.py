"""A federation of nodes ends like the simulation of the same partition and seed, bit for bit."""

import pytest
import torch

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.aggregation import DPFedAvg, FedAvg
from fl_lightning.attacks import LabelFlip, SignFlip
from fl_lightning.callbacks import CosineAnnealing, Ditto, FederatedServer
from fl_lightning.data import ClassesPerClient, PoissonClients, RandomClients, SequentialClients
from fl_lightning.flower.node import OwnData, Undivided
from fl_lightning.transforms import BernoulliMask, TopK
from tests.flower.loopback import Federation
from tests.flower.sources import FileBlobs
from tests.test_every_algorithm import ALGORITHMS, fitting_model
from tests.toys import Blobs, blobs, federate, identical

PARTITION = ClassesPerClient(5, 2)
#: how the server is made, and which clients take part
CASES = {
    name: (ALGORITHMS[name], {}, RandomClients(count=3))
    for name in ("FedAvg", "FedNNNN", "FedAdp", "FedNS", "FedDNA", "Scaffold", "FedMA", "FedBN", "FedProx", "FedDyn")
} | {
    "N-FedAvg": (
        FedAvg,
        {"callbacks": [CosineAnnealing()], "transforms": [BernoulliMask(0.6)]},
        SequentialClients(count=3),
    ),
    "Ditto": (FedAvg, {"callbacks": [Ditto(lam=0.5)]}, RandomClients(count=3)),
    "FedBN with a mask": (ALGORITHMS["FedBN"], {"transforms": [BernoulliMask(0.6)]}, RandomClients(count=3)),
    "TopK": (FedAvg, {"transforms": [TopK(0.1)]}, RandomClients(count=3)),
    "Scaffold with TopK": (ALGORITHMS["Scaffold"], {"transforms": [TopK(0.1)]}, RandomClients(count=3)),
    "bad clients": (
        FedAvg,
        {"callbacks": [LabelFlip(0.4, classes=4)], "transforms": [SignFlip(0.4)]},
        RandomClients(count=3),
    ),
    "DPFedAvg": (lambda: DPFedAvg(1.0, noise_multiplier=0.1), {"weighting": "uniform"}, PoissonClients(rate=0.6)),
    "server Adam": (
        FedAvg,
        {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01)},
        RandomClients(count=3),
    ),
}


def case(name: str, **client):
    make, options, selection = CASES[name]

    def make_server() -> FederatedServer:
        return FederatedServer(
            make(),
            options.get("weighting", "samples"),
            client=LocalTraining(epochs=1, callbacks=options.get("callbacks"), **client),
            optimizer=options.get("optimizer"),
            transforms=options.get("transforms"),
        )

    # DPFedAvg protects parameters only, so its model has no statistics, like FedMA's
    return (lambda: fitting_model("FedMA" if name == "DPFedAvg" else name)), make_server, selection


def simulated(name: str, rounds: int = 3, **options):
    make_module, make_server, selection = case(name)
    module, trainer = federate(
        make_module(), partition=PARTITION, selection=selection, server=make_server(), rounds=rounds, **options
    )
    return dict(module.state_dict()), trainer


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CASES)
def test_nodes_give_the_same_bits_as_the_simulation(name, tmp_path):
    expected, expected_trainer = simulated(name)
    make_module, make_server, selection = case(name)
    with Federation(make_module, make_server, PARTITION, tmp_path) as federation:
        state, trainer = federation.run(selection=selection)
    assert identical(state, expected)
    assert trainer.callback_metrics == expected_trainer.callback_metrics


def test_nodes_that_have_nothing_but_their_own_samples_give_the_same_bits(tmp_path):
    expected, _ = simulated("FedNS")
    make_module, make_server, selection = case("FedNS")
    whole = FederatedDataModule(Blobs(), partition=PARTITION)
    whole.setup("fit")
    with Federation(make_module, make_server, PARTITION, tmp_path, nodes=0) as federation:
        for client in range(PARTITION.num_clients):
            torch.save(blobs()[whole.indices(client)], tmp_path / f"{client}.pt")
            source = FileBlobs(str(tmp_path / f"{client}.pt"), batch_size=16)
            federation.start(client, [client], OwnData(source, partition=Undivided(needs_labels=True)))
        state, _ = federation.run(selection=selection)
    assert identical(state, expected)
