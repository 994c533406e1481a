"""FedNova: normalised averaging, in which clients that take more steps get no more influence.

This file contains the server's and the client's half.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020 (section 4). https://arxiv.org/abs/2007.07481
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from fl_lightning._lightning.names import LightningModule
from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.streaming import StreamingAggregator
from fl_lightning.client import ClientCallback
from fl_lightning.client.effective_steps import EffectiveSteps, check_plain_sgd
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState
from fl_lightning.core.update import ClientUpdate


class FedNova(StreamingAggregator):
    """w ← w + τ_eff Σ p_k Δ_k / a_k with τ_eff = Σ p_k a_k: averages how far each client moved per step.

    a_k is what the paper calls η‖a_k‖₁: η τ_k for τ_k steps of plain SGD, more with momentum
    (:class:`~fl_lightning.client.effective_steps.EffectiveSteps`). If all a_k are equal, this is FedAvg. Statistics
    are averaged as in FedAvg. The client's half, :class:`CountSteps`, is added automatically. Outside a run, an update
    may lack ``extras["steps"]``; a_k is then the number of steps times the learning rate, where 1 replaces a missing
    value.
    """

    def client_callbacks(self) -> list[ClientCallback]:
        return [CountSteps()]

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self.sums["directions"] = torch.zeros_like(self.start.parameters)
        self.sums["steps"] = self.start.parameters.new_zeros(())

    def extras_shapes(self) -> dict[str, torch.Size]:
        return {"steps": torch.Size()}

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        reported = update.extras.get("steps")
        steps = (update.num_steps or 1) * (update.learning_rate or 1.0) if reported is None else reported.item()
        if steps:  # a client whose learning rate was 0 throughout has no direction
            self.sums["directions"].add_(self.update_of(state), alpha=weight / steps)
        self.sums["steps"] += weight * steps

    def finish_round(self) -> Aggregate:
        mean, total = self.mean, self.sums["weight"]
        tau = self.sums["steps"] / total  # τ_eff
        parameters = self.start.parameters + tau * self.sums["directions"] / total
        return Aggregate(self.result(FlatState(parameters, mean.statistics, mean.counters)))


class CountSteps(ClientCallback):
    """The client's half: reports a_k, the total length of its optimiser steps."""

    def on_client_start(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        """Check the client's optimiser."""
        check_plain_sgd(optimizers, "FedNova")
        self.steps = EffectiveSteps()

    def on_step(self, optimizer: Optimizer) -> None:
        """Count the step."""
        self.steps.add(optimizer)

    def on_upload(self, update: ClientUpdate) -> None:
        """Send a_k."""
        update.extras["steps"] = torch.tensor(self.steps.total, dtype=torch.float64)
