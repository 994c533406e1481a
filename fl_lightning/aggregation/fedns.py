"""FedNS, federated node selection, and FedAvg+lastFC, which applies only its rule for the last layer.

Zhuo, Li. FedNS: Improving Federated Learning for Collaborative Image Classification on Mobile Clients. ICME 2021.

A node is an output unit of a linear layer or an output channel of a convolution: a row of the weight and its bias.
"""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.split import SplitAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate

# Transposed convolutions are averaged with p_k, because their output channels are not the rows of the weight.
_LAYERS_WITH_NODES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class FedAvgLastFC(SplitAggregator):
    """FedAvg, except that unit c of the last linear layer weights clients by their samples of class c (algorithm 2).

    Clients must report their class counts. If no client of the round holds a class, its unit is averaged with p_k.

    Args:
        head: the name of the layer whose outputs are the classes; by default the model's last trainable
            ``nn.Linear``.
    """

    needs_class_counts = True

    def __init__(self, head: str | None = None) -> None:
        self.head = head

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        self._find_head(model)

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        head = self._find_head(model)
        layers = self._find_layers(model)
        self._num_classes = head.out_features
        self._head_tensors = layers.pop(head)
        self._hidden_tensors = [tensors for tensors in layers.values() if tensors]

    def receive(self, update: ClientUpdate, weight: float) -> None:
        if update.class_counts is None:
            raise MisconfigurationError(
                f"client {update.client} reports no class counts, but {type(self).__name__} averages the head by class:"
                " use data with class labels, or FedAvg"
            )
        if len(update.class_counts) > self._num_classes:
            raise MisconfigurationError(
                f"client {update.client} has {len(update.class_counts)} classes, but the head has"
                f" {self._num_classes} outputs: set head to the layer whose outputs are the classes"
            )
        super().receive(update, weight)

    def finish_round(self) -> Aggregate:
        mean = self.own_share_of_mean("parameters", self.sizes)  # eq. 3, for everything that does not belong to a node
        parameters = self.layout.split(self.layout.parameters, mean)
        clients = [self.layout.split(self.layout.parameters, item.state.parameters) for item in self.received]
        for tensors, weights in self.node_weights(clients):
            for name in tensors:
                rows = parameters[name].view(weights.shape[1], -1).zero_()
                for weight, client in zip(self.own(weights), clients, strict=True):
                    rows += weight[:, None] * client[name].view_as(rows)
        self.sum_over_clients(mean)
        return Aggregate(self.result(FlatState(mean, self.mean_of("statistics", self.sizes), self.counters)))

    def node_weights(self, clients: list[StateDict]) -> Iterator[tuple[list[str], Tensor]]:
        """Yield for each layer the names of its tensors and a (clients, nodes) matrix of weights.

        The matrix has a row for every client of the round.

        Args:
            clients: the parameters of the clients in ``received``.
        """
        counts = torch.zeros(len(self.cohort), self._num_classes, dtype=self.dtype)
        for row, item in zip(counts, self.cohort, strict=True):
            held = torch.as_tensor(item.update.class_counts)
            row[: len(held)] = held  # the data may lack the last classes
        yield self._head_tensors, self.shares(to_device(counts, self.device))  # eq. 4

    def shares(self, amounts: Tensor) -> Tensor:
        """Return each client's share of a node's total amount; p_k where the total is 0."""
        total = amounts.sum(0)
        return torch.where(total > 0, amounts / total, self.weights[:, None])

    def _find_head(self, model: nn.Module) -> nn.Linear:
        linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        linear = [layer for layer in linear if layer.weight.requires_grad] or linear  # not a frozen teacher's head
        if not linear:
            raise MisconfigurationError(
                f"{type(model).__name__} has no nn.Linear, but {type(self).__name__} averages the last one by class:"
                " use a model that ends in one, or FedAvg"
            )
        if self.head is None:
            return linear[-1]
        head = dict(model.named_modules(remove_duplicate=False)).get(self.head)
        if not isinstance(head, nn.Linear):
            last = next(name for name, layer in model.named_modules() if layer is linear[-1])
            raise MisconfigurationError(
                f"head={self.head!r} is not an nn.Linear of {type(model).__name__}:"
                f" set it to the name of one, or leave it out to take the last, {last!r}"
            )
        return head

    def _find_layers(self, model: nn.Module) -> dict[nn.Module, list[str]]:
        """Return the trainable weight and bias of each layer with nodes.

        Tied tensors would be nodes of two layers, so they are left out and averaged with p_k.
        """
        owners = Counter(id(value) for module in model.modules() for value in module.parameters(recurse=False))
        return {
            layer: [
                name
                for name, value in layer.named_parameters(prefix, recurse=False)
                if name.rpartition(".")[2] in ("weight", "bias")
                and name in self.layout.parameters
                and owners[id(value)] == 1
            ]
            for prefix, layer in model.named_modules()
            if isinstance(layer, _LAYERS_WITH_NODES)
        }


class FedNS(FedAvgLastFC):
    """Below the head, a client's weight in a node is the variance of the node's update at that client (algorithm 3).

    Clients whose variance is an outlier do not count in the node; with 5 clients or fewer, there is never an outlier.
    Where all variances are 0, as in nodes with one incoming weight, the weight is p_k. The head is averaged as in
    :class:`FedAvgLastFC`.

    Args:
        head: the name of the layer whose outputs are the classes; by default the model's last trainable
            ``nn.Linear``.
    """

    def node_weights(self, clients: list[StateDict]) -> Iterator[tuple[list[str], Tensor]]:
        yield from super().node_weights(clients)
        start = self.layout.split(self.layout.parameters, self.start.parameters)
        # The weight comes first. If it is frozen, the bias is alone: rows of one entry, variance 0, hence p_k.
        weights = [tensors[0] for tensors in self._hidden_tensors]
        nodes = [len(start[name]) for name in weights]
        if not nodes:
            return
        own = [
            torch.cat([row_variances(client[name] - start[name]) for name in weights]) for client in clients
        ]  # eq. 5
        variances = self.rows_of_all(own, width=sum(nodes)).split(nodes, dim=1)
        for tensors, of_layer in zip(self._hidden_tensors, variances, strict=True):
            yield tensors, self.shares(without_outliers(of_layer))  # eq. 6


def row_variances(values: Tensor) -> Tensor:
    """Return the variance of the entries of each row, computed in two passes."""
    rows = values.view(len(values), -1)
    return (rows - rows.mean(1, keepdim=True)).square().mean(1)


def without_outliers(variances: Tensor) -> Tensor:
    """Set the variances of clients (rows) outside μ ± 2σ of a node (column) to 0."""
    deviations = (variances - variances.mean(0)).abs()
    sigma = deviations.square().mean(0).sqrt()
    # With 5 clients, one can lie exactly on the border, where rounding must not exclude it.
    return variances.where(deviations <= 2 * sigma * (1 + 1e-6), 0.0)
