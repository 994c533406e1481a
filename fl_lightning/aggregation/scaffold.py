"""SCAFFOLD: control variates against client drift. Both halves: the server's and the client's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020 (algorithm 1, option II).
"""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fl_lightning.aggregation.base import Aggregate, StreamingAggregator
from fl_lightning.local import ClientCallback
from fl_lightning.state import FlatState, StateLayout
from fl_lightning.update import ClientUpdate


class Scaffold(StreamingAggregator):
    """w ← Σ p_k w_k and c ← c + (1/K) Σ (c_k⁺ - c_k), with K all clients, not only those of the round.

    The clients' half comes with it. Needs ``torch.optim.SGD`` at the clients; the paper weighs clients uniformly.
    Outside a run an update may lack ``extras["control"]``: c_k⁺ - c_k is then computed from its steps and learning
    rate, with 1 for what it does not report.
    """

    def __init__(self) -> None:
        self.control: Tensor | None = None

    def client_callbacks(self) -> list[ClientCallback]:
        return [ControlVariates()]

    def begin_round(self, model: nn.Module) -> None:
        super().begin_round(model)
        if self.control is None:
            self.control = torch.zeros_like(self.start.parameters)
        self.control = self.control.to(self.start.parameters)
        self.sums["control"] = torch.zeros_like(self.control)
        self.sums["clients"] = self.control.new_zeros(())

    def broadcast(self) -> dict[str, Tensor]:
        assert self.control is not None
        return {"control": self.control.to(self._start_state[self.layout.parameters[0]].dtype)}

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        assert self.control is not None
        change = update.extras.get("control")
        if change is None:
            divisor = (update.num_steps or 1) * (update.learning_rate or 1.0)
            change = (self.start.parameters - state.parameters) / divisor - self.control
        self.sums["control"] += change
        self.sums["clients"] += 1
        self.store.put(update.client, {"control": change + control_of(self.store.get(update.client), change)})

    def finish_round(self) -> Aggregate:
        assert self.control is not None
        everyone = self.num_clients or self.sums["clients"]
        self.control = self.control + self.sums["control"] / everyone
        return Aggregate(self.result(self.mean))

    def state_dict(self) -> dict[str, Any]:
        return {"control": self.control}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.control = state_dict["control"]


class ControlVariates(ClientCallback):
    """The client's half: gradient + c - c_k at every step; afterwards c_k⁺ = c_k - c + (w_t - w_k) / (steps · η).

    With a learning rate that changes, steps · η is the sum of the rates; with momentum μ a gradient moves the model in
    all later steps too, and the divisor is Σ_s Σ_{t≥s} η_t μ^{t-s}.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the client's optimiser is there."""
        self._check(trainer, pl_module)
        self.layout = StateLayout(pl_module)
        control = self.round.broadcast["control"]
        own = control_of(self.round.store.get(self.client, control.device), control)
        self.correction = self.layout.split(self.layout.parameters, control - own)
        # Σ_s Σ_{t≥s} η_t μ^{t-s} is grown step by step: lag = Σ_{s≤t} μ^{t-s}, divisor += η_t · lag
        self.lag = 0.0
        self.divisor = 0.0

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called once a step, before clipping."""
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(self.correction[name])
        group = optimizer.param_groups[0]
        self.lag = 1.0 + group["momentum"] * self.lag
        self.divisor += group["lr"] * self.lag

    def on_upload(self, update: ClientUpdate) -> None:
        """Sends c_k⁺ - c_k. Mind the sign: w_t - w_k, not the update."""
        start = self.layout.flatten(self.round.start).parameters
        trained = self.layout.flatten(update.state).parameters
        update.extras["control"] = (start - trained) / self.divisor - self.round.broadcast["control"]

    def _check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        if not pl_module.automatic_optimization:
            raise MisconfigurationException(
                f"Scaffold corrects every gradient, which {type(pl_module).__name__} hides by manual optimization:"
                " use automatic optimization, or another aggregator"
            )
        if len(trainer.optimizers) != 1 or not isinstance(optimizer, SGD):
            names = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers)
            raise MisconfigurationException(
                f"Scaffold reads the mean gradient off the model's move, which {names} does not allow:"
                " use one torch.optim.SGD at the clients, or another aggregator"
            )
        for group in optimizer.param_groups:
            if group["nesterov"] or group["dampening"]:
                raise MisconfigurationException(
                    f"Scaffold with SGD(nesterov={group['nesterov']}, dampening={group['dampening']}):"
                    " plain momentum only, set both off"
                )
            if any(group[key] != optimizer.param_groups[0][key] for key in ("lr", "momentum")):
                raise MisconfigurationException(
                    "Scaffold with different learning rates or momenta in one optimiser: use one parameter group"
                )


def control_of(kept: dict[str, Tensor] | None, like: Tensor) -> Tensor:
    """c_k, which is 0 at first."""
    return torch.zeros_like(like) if kept is None else kept["control"].to(like)
