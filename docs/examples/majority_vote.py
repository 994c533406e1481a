"""Majority vote: the clients decide in which direction each parameter moves, and all moves are equally long.

Bernstein, Zhao, Azizzadenesheli, Anandkumar. signSGD with Majority Vote is Communication Efficient and Fault Tolerant.
ICLR 2019.
"""

import torch
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import Aggregate, StreamingAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState


class MajorityVote(StreamingAggregator):
    """w ← w + η sign(Σ sign(Δ_k)), with one vote per client.

    Args:
        step: η, how far every parameter moves in a round.
    """

    def __init__(self, step: float = 0.01) -> None:
        if not 0 < step < float("inf"):
            raise MisconfigurationError(f"step={step}, but the model must move: set step of MajorityVote above 0")
        self.step = step

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self.sums["votes"] = torch.zeros_like(self.start.parameters)
        self.sums["voters"] = self.start.parameters.new_zeros(())

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        super().accumulate(state, update, weight)
        self.sums["votes"] += self.update_of(state).sign()
        self.sums["voters"] += 1

    def finish_round(self) -> Aggregate:
        votes, mean = self.sums["votes"], self.mean
        parameters = self.start.parameters + self.step * votes.sign()
        margin = votes.abs().mean() / self.sums["voters"]  # 1 if the clients agree about every parameter
        return Aggregate(
            self.result(FlatState(parameters, mean.statistics, mean.counters)), metrics={"majority_vote/margin": margin}
        )
