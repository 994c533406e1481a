"""FedBN: normalisation layers stay with the client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.
"""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from fl_lightning._lightning.names import LightningModule
from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.streaming import StreamingAggregator
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.layers import is_normalisation
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.update import ClientUpdate


class FedBN(StreamingAggregator):
    """Averages everything except the normalisation layers, whose weights and statistics each client keeps.

    A client's model is the served model with the client's own normalisation layers (:meth:`personal_state`); the
    callback ``ClientEvaluation`` evaluates it. In the served model, which is meant for clients that never took part,
    the normalisation layers are averaged too.
    """

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        if not normalisation_entries(model):
            raise MisconfigurationError(
                f"FedBN on {type(model).__name__}, which has no normalisation layer to keep:"
                " use FedAvg, or a model with normalisation"
            )

    def client_callbacks(self) -> list[ClientCallback]:
        return [OwnLayers(type(self).__name__)]

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self._kept = normalisation_entries(model)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        if not update.memory:  # outside a run
            self.memory.put(update.client, {name: update.state[name] for name in self._kept})

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean))

    def personal_state(self, client: int) -> StateDict:
        return self.memory.get(client, self.device) or {}


class OwnLayers(ClientCallback):
    """The client's half: remembers the client's normalisation layers as it trained them, before any transform.

    Args:
        aggregator: name of the aggregator, which reads what is remembered.
    """

    def __init__(self, aggregator: str) -> None:
        self.aggregator = aggregator

    @property
    def state_key(self) -> str:
        """The name under which the aggregator finds the layers."""
        return self.aggregator

    def on_client_start(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        """Find the layers."""
        self.kept = normalisation_entries(module)

    def on_upload(self, update: ClientUpdate) -> None:
        """Remember the layers."""
        self.memory = {name: update.state[name] for name in self.kept}


def normalisation_entries(model: nn.Module) -> list[str]:
    """Return the names in the state dict that belong to normalisation layers."""
    layers = [name for name, layer in model.named_modules() if is_normalisation(layer)]
    return [entry for entry in model.state_dict() if entry.rpartition(".")[0] in layers]
