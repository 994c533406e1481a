"""SCAFFOLD: control variates against client drift.

This file contains the server's and the client's half.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020 (algorithm 1, option II).
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
from fl_lightning.client.effective_steps import EffectiveSteps, check_plain_sgd
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.update import ClientUpdate


class Scaffold(StreamingAggregator):
    """w ← Σ p_k w_k and c ← c + (1/K) Σ (c_k⁺ - c_k), where K counts all clients, not only those of the round.

    The client's half, :class:`ControlVariates`, is added automatically and keeps c_k. Clients need ``torch.optim.SGD``;
    the paper weights them uniformly. Outside a run, an update may lack ``extras["control"]``; c_k⁺ - c_k is then
    computed from its number of steps and its learning rate, where 1 replaces a missing value.
    """

    def __init__(self) -> None:
        self.control: Tensor | None = None

    def client_callbacks(self) -> list[ClientCallback]:
        return [ControlVariates()]

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        kept = round.broadcast.get("control", self.control)  # a client on another machine knows what the server sent
        self.control = self.kept_vector(kept, "control variate")
        self.sums["control"] = torch.zeros_like(self.control)
        self.sums["clients"] = self.control.new_zeros(())

    def broadcast(self) -> dict[str, Tensor]:
        assert self.control is not None
        return {"control": self.control.to(self.start_state[self.layout.parameters[0]].dtype)}

    def extras_shapes(self) -> dict[str, torch.Size]:
        return {"control": self.start.parameters.shape}

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        assert self.control is not None
        change = update.extras.get("control")
        if change is None:
            divisor = (update.num_steps or 1) * (update.learning_rate or 1.0)
            change = (self.start.parameters - state.parameters) / divisor - self.control
        self.sums["control"] += change
        self.sums["clients"] += 1

    def finish_round(self) -> Aggregate:
        assert self.control is not None
        num_clients = self.num_clients or self.sums["clients"]
        self.control = self.control + self.sums["control"] / num_clients
        return Aggregate(self.result(self.mean))

    def state_dict(self) -> dict[str, Any]:
        return {"control": self.control}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.control = require_type(state_dict["control"], Tensor | None, "control")


class ControlVariates(ClientCallback):
    """The client's half: adds c - c_k to every gradient; finally c_k⁺ = c_k - c + (w_t - w_k) / (steps · η).

    If the learning rate changes, steps · η is the sum of the rates; for momentum, see :class:`EffectiveSteps`.
    """

    def on_client_start(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        """Check the client's optimiser, and load c_k."""
        if not module.automatic_optimization:
            raise MisconfigurationError(
                f"Scaffold corrects every gradient, which manual optimization in {type(module).__name__} prevents:"
                " use automatic optimization, or another aggregator"
            )
        check_plain_sgd(optimizers, "Scaffold")
        self.layout = self.local_training.layout
        control = self.round.broadcast["control"]
        self.own = self.memory["control"].to(control) if self.memory else torch.zeros_like(control)
        self.steps = EffectiveSteps()

    def own_tensors(self) -> StateDict:
        """Return c - c_k."""
        return self.layout.split(self.layout.parameters, self.round.broadcast["control"] - self.own)

    def on_gradients(self, gradients: StateDict, parameters: StateDict, own: StateDict) -> StateDict:
        """Correct the gradient."""
        return {name: gradient + own[name] for name, gradient in gradients.items() if name in own}

    def on_step(self, optimizer: Optimizer) -> None:
        """Count the step."""
        self.steps.add(optimizer)

    def on_upload(self, update: ClientUpdate) -> None:
        """Send c_k⁺ - c_k and remember c_k⁺. The sign is that of w_t - w_k, the negative update."""
        start = self.layout.flatten(self.round.start).parameters
        trained = self.layout.flatten(update.state).parameters
        change = torch.zeros_like(self.own)
        if self.steps.total:  # a client whose learning rate was 0 throughout has learned nothing about its gradient
            change = (start - trained) / self.steps.total - self.round.broadcast["control"]
        update.extras["control"] = change
        self.memory = {"control": self.own + change}
