"""DP-FedAvg: central differential privacy at the level of clients.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR 2018 (algorithm 1 with
the estimator f̃_f and flat clipping). https://arxiv.org/abs/1710.06963
"""

import torch
from torch import nn

from fl_lightning.aggregation.accounting import PrivacyAccountant
from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.norm_clipping import NormClipping
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.state import FlatState
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate

#: with far more noise, the accountant computes the logarithm of 0, and ε has long been 0
_MOST_NOISE = 1e6


class DPFedAvg(NormClipping):
    """w ← w + (Σ Δ_k / max(1, ‖Δ_k‖ / S) + N(0, z² S²)) / m: the mean of clipped updates, with noise.

    m is the expected number of clients per round, which does not depend on who takes part. The noise is a function of
    the run's seed and the round. ``privacy/epsilon`` is what the rounds so far have cost: the global model is
    (ε, δ)-differentially private with respect to one client's whole data. With
    :class:`~fl_lightning.data.PoissonClients`, two federations are neighbours if one of them lacks a client. With
    :class:`~fl_lightning.data.RandomClients` and :class:`~fl_lightning.data.AllClients`, they are neighbours if one
    client has different data, which can change the sum by 2 S instead of S.

    All clients count equally, so ``server.weighting`` must be uniform. Only parameters are released: a model with
    statistics or counters, such as BatchNorm's, is refused, and frozen entries keep the global value.

    Args:
        max_norm: S, the threshold to which updates are clipped.
        noise_multiplier: z, the standard deviation of the noise as a multiple of S; 0 adds none and computes no ε.
        delta: δ of the guarantee; it should be well below one over the number of clients.
    """

    needs_clients = False

    def __init__(self, max_norm: float, noise_multiplier: float, delta: float = 1e-5) -> None:
        super().__init__(max_norm)
        name, setting = "noise_multiplier", "noise_multiplier of DPFedAvg"
        check_number(name, noise_multiplier, at_least=0, at_most=_MOST_NOISE, setting=setting)
        if noise_multiplier:
            check_number(name, noise_multiplier, above=0, reason="ε is divided by it", setting=setting)
        check_number("delta", delta, above=0, below=1, reason="it is a probability", setting="delta of DPFedAvg")
        self.noise_multiplier = noise_multiplier
        self.delta = delta
        self._accountant: PrivacyAccountant | None = None

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        if federation.weighting != "uniform":
            raise MisconfigurationError(
                f"weighting={federation.weighting}, but DPFedAvg bounds what one client can change, whatever its number"
                " of samples: set server.weighting to uniform"
            )
        buffers = [*self.layout.statistics, *self.layout.counters]
        if buffers:
            raise MisconfigurationError(
                f"{type(model).__name__} has {buffers[0]}, which DPFedAvg does not protect:"
                " use a model without such buffers, for example with GroupNorm instead of BatchNorm"
            )
        self._accountant = PrivacyAccountant(federation, self.noise_multiplier, self.delta)

    def accumulate(self, state: FlatState, update: ClientUpdate, weight: float) -> None:
        self.sums["weight"] += 1
        self.sums["parameters"] += self.clip(self.update_of(state))

    def finish_round(self) -> Aggregate:
        clients = self.sums["weight"] if self._accountant is None else self._accountant.clients_per_round
        parameters = self.start.parameters + (self.sums["parameters"] + self._noise()) / clients
        flat = FlatState(parameters, self.start.statistics, self.start.counters)
        state = self.layout.unflatten(flat, like=self.start_state)
        metrics: dict[str, float | torch.Tensor] = {}
        if self._accountant is not None and self.noise_multiplier:
            metrics["privacy/epsilon"] = self._accountant.epsilon(rounds=self.round.number + 1)
        return Aggregate(state, metrics=metrics)

    def _noise(self) -> torch.Tensor:
        """Return the round's noise. It is drawn on the CPU, because a GPU's generator would draw different numbers."""
        generator = torch.Generator().manual_seed(seed_for("differential privacy", self.round.seed, self.round.number))
        noise = torch.randn(len(self.start.parameters), generator=generator, dtype=self.dtype)
        return self.noise_multiplier * self.max_norm * to_device(noise, self.device)
