"""A class where an object is needed is reported when it is given, not when it is first used."""

import pytest

from fl_lightning import FederatedDataModule, FederatedModule, FederatedServer, LocalTraining
from fl_lightning.aggregation import FedAvg
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, RandomClients
from tests.toys import Blobs, Net


@pytest.mark.parametrize(
    ("create", "name", "given"),
    [
        (lambda: FederatedModule(Net), "module", "Net"),
        (lambda: FederatedServer(aggregator=FedAvg), "aggregator", "FedAvg"),
        (lambda: FederatedServer(client=LocalTraining), "client", "LocalTraining"),
        (lambda: FederatedDataModule(Blobs, IID(2)), "source", "Blobs"),
        (lambda: FederatedDataModule(Blobs(), IID), "partition", "IID"),
        (lambda: FederatedDataModule(Blobs(), IID(2), RandomClients), "selection", "RandomClients"),
    ],
)
def test_a_class_instead_of_an_object_is_refused(create, name, given):
    with pytest.raises(MisconfigurationError) as error:
        create()
    assert str(error.value) == f"{name} is the class {given}: create an object, {given}(...)"
