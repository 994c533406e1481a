"""How far the clients move, how far their average moves, and how far the model moves.

Nagura, Bian, Sato. FedNNNN: Norm-Normalized Neural Network Aggregation for Fast and Accurate Federated Learning
(section 3, norm-based weight divergence analysis).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.layers import LAYER_KINDS
from fl_lightning.core.state import StateLayout, exact_dtype, exact_vector
from fl_lightning.metrics.functional import layer_norms

#: the layer name for parameters that belong to the model itself, not to a module in it
ROOT = "root"


class UpdateNorms(Metric):
    """Norms of the clients' updates and of the model's move, per layer, per kind of layer and for the whole model.

    N is the norm of the average update (FedNNNN, eq. 4), and E the average of the update norms (eq. 5). N/E is 1 if all
    clients move the same way, and near 0 if they cancel each other out. ``move`` is how far the model moved in this
    round (eq. 24), and ``integral`` is the sum of its moves so far. A kind of layer has one norm over all its layers,
    biases included. Memory does not grow with the number of clients.

    Args:
        model: a model with the same names and shapes as the states to measure; it is not kept.

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
        # Every rank has the same model, so the maximum does not change its numbers.
        self.add_state("has_moved", zeros((), dtype=torch.int64), dist_reduce_fx="max")
        self.add_state("move", zeros(len(groups)), dist_reduce_fx="max")
        self.add_state("integral", zeros(len(groups)), dist_reduce_fx="max", persistent=True)

    def update(
        self,
        start: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        weight: float = 1.0,
        difference: Tensor | None = None,
    ) -> None:
        """Add a client.

        Args:
            start: the state that the client started from.
            state: the state that the client ended with.
            weight: the client's weight before normalisation: its number of samples, or 1.
            difference: ``state - start`` over ``layout.parameters`` as one vector, if the caller has it already.
        """
        update = self._difference(start, state) if difference is None else difference
        self.weight += weight
        self.update_sum.add_(update, alpha=weight)
        self.norm_sum.add_(self._norms(update), alpha=weight)

    def moved(self, start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> None:
        """Record how far the global model moved in this round, from ``start`` to ``end``."""
        self._computed = None
        self.has_moved = torch.ones_like(self.has_moved)
        self.move = self._norms(self._difference(start, end))  # eq. 24

    def compute(self) -> dict[str, Tensor]:
        """Return ``<layer>/N``, ``E`` and ``N_over_E`` and, after :meth:`moved`, ``move`` and ``integral``.

        N/E is 1 where no client moved, because then no two clients disagree.
        """
        values: dict[str, Tensor] = {}
        if self.weight > 0:
            n = self._norms(self.update_sum / self.weight)  # eq. 4
            e = self.norm_sum / self.weight  # eq. 5
            values |= {"N": n, "E": e, "N_over_E": torch.where(e > 0, n / e, 1.0)}
        if self.has_moved:
            values |= {"move": self.move, "integral": self.integral + self.move}
        if not values:
            return {}
        rows = torch.stack(list(values.values()), dim=1).cpu()  # the host waits for a GPU with every copy
        return {
            f"{name}/{quantity}": value
            for name, row in zip(self.names, rows, strict=True)
            for quantity, value in zip(values, row, strict=True)
        }

    def next_round(self) -> None:
        """Start a new round; the integral carries over."""
        integral = self.integral + self.move
        self.reset()
        self.integral = integral

    def _difference(self, start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> Tensor:
        return exact_vector(end, self.layout.parameters).sub_(exact_vector(start, self.layout.parameters))

    def _norms(self, vector: Tensor) -> Tensor:
        self._members = members = self._members.to(vector.device)
        return (members @ layer_norms(vector, self.layout).to(members).square()).sqrt()


def layer_groups(model: nn.Module, layout: StateLayout) -> dict[str, list[bool]]:
    """Return which layers form each group, by name: each layer alone, each kind of layer in the model, and all."""
    layers = list(layout.layers)
    groups = {layer or ROOT: [layer == other for other in layers] for layer in layers}
    modules = dict(model.named_modules())
    for kind, types in LAYER_KINDS.items():
        members = [isinstance(modules.get(layer), types) for layer in layers]
        if any(members):
            groups[kind] = members
    return groups | {"all": [True] * len(layers)}
