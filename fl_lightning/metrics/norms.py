"""How far clients go, how far their average goes, and how far the model goes.

Nagura, Bian, Sato. FedNNNN: Norm-Normalized Neural Network Aggregation for Fast and Accurate Federated Learning
(section 3, norm-based weight divergence analysis).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.layers import LAYER_KINDS
from fl_lightning.core.state import StateLayout, exact_dtype
from fl_lightning.metrics.functional import layer_norms, update_vector

#: the name of the layer whose parameters are the model's own, not those of a module in it
ROOT = "root"


class UpdateNorms(Metric):
    """N of the clients' average update, E of their updates, the model's own move, and the integral of its moves.

    Each for every layer, for every kind of layer and for the whole model: a kind has one norm over all its layers,
    biases included. Memory does not grow with the number of clients.

    Args:
        model: has the names and shapes of every state to come. It is not kept.

    Example::

        norms = UpdateNorms(model)
        for state in client_states:
            norms.update(start, state, weight=600)
        norms.moved(start, new_state)
        norms.compute()  # {"conv1/N": ..., "all/N_over_E": ..., ...}
        norms.next_round()
    """

    full_state_update = False
    weight: Tensor
    update_sum: Tensor
    norm_sum: Tensor
    has_moved: Tensor
    move: Tensor
    integral: Tensor

    def __init__(self, model: nn.Module, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layout = StateLayout(model)
        start = self.layout.flatten(model.state_dict()).parameters
        dtype = exact_dtype(start.device)
        groups = layer_groups(model, self.layout)
        self.names = list(groups)
        #: which layers (columns) each group (row) holds
        self._members = torch.tensor(list(groups.values()), dtype=dtype, device=start.device)
        zeros = self._members.new_zeros
        self.add_state("weight", zeros(()), dist_reduce_fx="sum")
        self.add_state("update_sum", zeros(start.shape), dist_reduce_fx="sum")
        self.add_state("norm_sum", zeros(len(groups)), dist_reduce_fx="sum")
        # Every rank has the same model, and so the same numbers.
        self.add_state("has_moved", zeros((), dtype=torch.int64), dist_reduce_fx="max")
        self.add_state("move", zeros(len(groups)), dist_reduce_fx="max")
        self.add_state("integral", zeros(len(groups)), dist_reduce_fx="max", persistent=True)

    def update(self, start: Mapping[str, Tensor], state: Mapping[str, Tensor], weight: float = 1.0) -> None:
        """Adds a client.

        Args:
            start: the state that it started from.
            state: the state that it came to.
            weight: before normalisation: its number of samples, or 1.
        """
        update = update_vector(self.layout, start, state)
        self.weight += weight
        self.update_sum.add_(update, alpha=weight)
        self.norm_sum.add_(self._norms(update), alpha=weight)

    def moved(self, start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> None:
        """Tells from where to where the global model went in this round."""
        self._computed = None
        self.has_moved = torch.ones_like(self.has_moved)
        self.move = self._norms(update_vector(self.layout, start, end))  # eq. 24

    def compute(self) -> dict[str, Tensor]:
        """Return ``<layer>/N``, ``E`` and ``N_over_E``, and if the model moved, ``move`` and ``integral``.

        N/E is 1 where no client moved: nobody disagrees.
        """
        values: dict[str, Tensor] = {}
        if self.weight > 0:
            n = self._norms(self.update_sum / self.weight)  # eq. 4
            e = self.norm_sum / self.weight  # eq. 5
            values |= {"N": n, "E": e, "N_over_E": torch.where(e > 0, n / e, 1.0)}
        if self.has_moved:
            values |= {"move": self.move, "integral": self.integral + self.move}
        columns = {quantity: vector.cpu() for quantity, vector in values.items()}
        return {
            f"{name}/{quantity}": vector[row]
            for row, name in enumerate(self.names)
            for quantity, vector in columns.items()
        }

    def next_round(self) -> None:
        """Begins a new round; the integral goes on."""
        integral = self.integral + self.move
        self.reset()
        self.integral = integral

    def _norms(self, vector: Tensor) -> Tensor:
        members = self._members.to(vector.device)
        return (members @ layer_norms(vector, self.layout).to(members).square()).sqrt()


def layer_groups(model: nn.Module, layout: StateLayout) -> dict[str, list[bool]]:
    """By name, which of the layers belong together: each layer alone, those of a kind that the model has, all."""
    layers = list(layout.layers)
    groups = {layer or ROOT: [layer == other for other in layers] for layer in layers}
    modules = dict(model.named_modules())
    for kind, types in LAYER_KINDS.items():
        members = [isinstance(modules.get(layer), types) for layer in layers]
        if any(members):
            groups[kind] = members
    return groups | {"all": [True] * len(layers)}
