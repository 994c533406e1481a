"""FedDyn: dynamic regularisation, so that the clients' optima agree with the global one.

This file contains the server's and the client's half.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021
(algorithm 1). https://arxiv.org/abs/2111.04263
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.names import LightningModule
from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.streaming import StreamingAggregator
from fl_lightning.client import ClientCallback
from fl_lightning.core.limits import check_number
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.update import ClientUpdate


class FedDyn(StreamingAggregator):
    """h ← h - (α/K) Σ (w_k - w), w ← Σ p_k w_k - h/α, where K counts all clients, not only those of the round.

    The client's half, :class:`DynamicRegulariser`, is added automatically and remembers the client's gradient. The
    paper weights clients uniformly. Statistics are averaged as in FedAvg.

    Args:
        alpha: strength of the regularisation; the paper searches among 0.1, 0.01 and 0.001.
    """

    def __init__(self, alpha: float = 0.01) -> None:
        self._regulariser = DynamicRegulariser(alpha)
        self.alpha = alpha
        #: h, the server's correction
        self.correction: Tensor | None = None

    def client_callbacks(self) -> list[ClientCallback]:
        return [self._regulariser]

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self.sums["moves"] = torch.zeros_like(self.start.parameters)
        self.sums["clients"] = self.start.parameters.new_zeros(())

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        self.sums["moves"] += self.update_of(state)
        self.sums["clients"] += 1

    def finish_round(self) -> Aggregate:
        mean = self.mean
        before = self.kept_vector(self.correction, "correction")
        num_clients = self.num_clients or self.sums["clients"]
        self.correction = before - self.alpha * self.sums["moves"] / num_clients
        parameters = mean.parameters - self.correction / self.alpha
        return Aggregate(self.result(FlatState(parameters, mean.statistics, mean.counters)))

    def state_dict(self) -> dict[str, Any]:
        return {"correction": self.correction}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.correction = require_type(state_dict["correction"], Tensor | None, "correction")


class DynamicRegulariser(ClientCallback):
    """The client's half: adds α (w - w_t) - g_k to every gradient, and finally sets g_k ← g_k - α (w_k - w_t).

    g_k is the gradient of the client's loss at the point where the client last stopped; it starts at 0.

    Args:
        alpha: strength of the regularisation.
    """

    def __init__(self, alpha: float) -> None:
        check_number("alpha", alpha, above=0, reason="FedDyn divides by it", setting="alpha of FedDyn")
        self.alpha = alpha

    def on_client_start(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        """Load g_k from the client's memory."""
        self.layout = self.local_training.layout
        self.start = self.layout.flatten(self.round.start).parameters
        self.gradient = self.memory["gradient"].to(self.start) if self.memory else torch.zeros_like(self.start)

    def own_tensors(self) -> StateDict:
        """Return g_k."""
        return self.layout.split(self.layout.parameters, self.gradient)

    def on_gradients(self, gradients: StateDict, parameters: StateDict, own: StateDict) -> StateDict:
        """Add the regularisation's gradient."""
        return {
            name: gradient.add(parameters[name] - self.round.start[name], alpha=self.alpha) - own[name]
            for name, gradient in gradients.items()
            if name in own
        }

    def on_upload(self, update: ClientUpdate) -> None:
        """Store the gradient at the point where the client stopped."""
        trained = self.layout.flatten(update.state).parameters
        self.memory = {"gradient": self.gradient - self.alpha * (trained - self.start)}
