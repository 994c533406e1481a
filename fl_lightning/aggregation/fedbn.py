"""FedBN: normalisation layers stay with the client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.
"""

from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fl_lightning.aggregation.base import Aggregate, StreamingAggregator
from fl_lightning.state import FlatState, StateDict
from fl_lightning.store import ClientStore
from fl_lightning.update import ClientUpdate

NORMALISATION = (_NormBase, nn.LayerNorm, nn.GroupNorm)


class FedBN(StreamingAggregator):
    """The average of everything but the normalisation layers, which each client keeps: affine weights and statistics.

    A client's model is the served one with its own layers in it (:meth:`personal_state`); the callback
    ``ClientEvaluation`` evaluates each. The served model, for clients never seen, has the average of these layers too.
    """

    def prepare(self, model: nn.Module, num_clients: int, seed: int, store: ClientStore) -> None:
        super().prepare(model, num_clients, seed, store)
        if not normalisation_entries(model):
            raise MisconfigurationException(
                f"FedBN on {type(model).__name__}, which has no normalisation layer to keep:"
                " use FedAvg, or a model with normalisation"
            )

    def begin_round(self, model: nn.Module) -> None:
        super().begin_round(model)
        self._kept = normalisation_entries(model)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        self.store.put(update.client, {name: update.state[name] for name in self._kept})

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean))

    def personal_state(self, client: int) -> StateDict:
        return self.store.get(client, self._device) or {}


def normalisation_entries(model: nn.Module) -> list[str]:
    """The names in the state dict that belong to normalisation layers."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, NORMALISATION)]
    return [entry for entry in model.state_dict() if entry.rpartition(".")[0] in layers]
