"""Constructor arguments can be read back from an object, because HParams and partitions show them."""

import inspect

import pytest

import fl_lightning.aggregation
import fl_lightning.callbacks
import fl_lightning.data
import fl_lightning.transforms
from fl_lightning import LocalTraining
from fl_lightning.aggregation import Aggregator, FedProx
from fl_lightning.core.arguments import changed_arguments, kept_arguments
from fl_lightning.data import Partition, Selection
from fl_lightning.transforms import UploadTransform

#: values for arguments that have no default
GIVEN = {"mu": 0.1, "beta": 0.7, "gamma": 0.8, "keep": 0.6, "factor": 0.9, "num_clients": 4, "classes": 2, "alpha": 0.3}
OWN = {
    "MixedNodes": {"classes": [1, "iid"], "samples_per_node": 5},
    "FreshDraw": {"num_clients": 4, "low": 3, "high": 5},
    "RandomClients": {"count": 3},
    "SequentialClients": {"count": 3},
    "ByColumn": {"column": "user"},
    "FavouriteClass": {"num_clients": 4, "eta": 0.5},
    "Shards": {"num_clients": 4, "shards_per_client": 2},
    "ByList": {"lists": [[0, 1], [2]]},
    "PoissonClients": {"rate": 0.5},
    "NormClipping": {"max_norm": 1.0},
    "DPFedAvg": {"max_norm": 1.0, "noise_multiplier": 1.0},
    "TopK": {"fraction": 0.1},
}


def classes() -> list[type]:
    packages = (fl_lightning.aggregation, fl_lightning.callbacks, fl_lightning.data, fl_lightning.transforms)
    found = {getattr(package, name) for package in packages for name in package.__all__}
    bases = (Aggregator, Partition, Selection, UploadTransform, fl_lightning.callbacks.ClientCallback)
    bases += (fl_lightning.callbacks.RoundCallback, fl_lightning.callbacks.FederatedServer)
    wanted = [item for item in found if inspect.isclass(item) and issubclass(item, bases)]
    wanted.remove(fl_lightning.callbacks.RoundProgressBar)  # it has the arguments of Lightning's own bar
    return sorted((item for item in wanted if not inspect.isabstract(item)), key=lambda item: item.__name__)


@pytest.mark.parametrize("kind", [*classes(), LocalTraining], ids=lambda kind: kind.__name__)
def test_every_argument_is_kept_under_its_name(kind):
    parameters = [
        parameter
        for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    arguments = OWN.get(kind.__name__, {name: GIVEN[name] for name in needed if name in GIVEN})
    instance = kind(**arguments)
    assert set(kept_arguments(instance)) == {parameter.name for parameter in parameters}
    assert {name: getattr(instance, name) for name in arguments} == arguments


def test_arguments_equal_to_their_defaults_are_not_listed_as_changed():
    assert changed_arguments(LocalTraining(epochs=3)) == {"epochs": 3, "callbacks": []}
    assert changed_arguments(FedProx(0.1)) == {"mu": 0.1}
