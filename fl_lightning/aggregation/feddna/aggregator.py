"""FedDNA: decoupled aggregation of normalisation layers.

Duan, Li, Lu. FedDNA: Federated Learning with Decoupled Normalization-Layer Aggregation for Non-IID Data. ECML PKDD
2021.

BatchNorm does not read its running statistics during training, so a run with BatchNorm has the same
parameters as FedAvg, bit for bit. Only the statistics that evaluation reads differ.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.feddna.importance import ImportanceLearner, Statistics, moved, pooled, spread, twins
from fl_lightning.aggregation.split import SplitAggregator
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.layers import statistics_entries
from fl_lightning.core.limits import check_number
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict, StateLayout
from fl_lightning.core.transfer import to_device


class FedDNA(SplitAggregator):
    """Averages parameters like FedAvg; client k keeps a share γ_k, its importance, of its own statistics (algorithm 1).

    Statistics are the running means and variances of BatchNorm. In a model without BatchNorm, the bias and weight of
    LayerNorm take their place. Each client gets its own statistics back (:meth:`personal_state`); the served model has
    the pooled ones. A client that was not selected keeps its statistics; one that has never been selected starts from
    the served ones.

    Args:
        steps: maximum number of training steps per round, each of which trains the VAE and then f.
        latent: number of dimensions in which a client is compared with the others.
        hidden: number of units in the hidden layers of the VAE.
        lr: learning rate of the VAE.
        importance_lr: learning rate of f, the network that computes γ.

    Attributes:
        gammas: γ_k of the last round, by client; 1 keeps the client's own statistics, 0 takes the others'.
    """

    def __init__(
        self, steps: int = 50, latent: int = 8, hidden: int = 64, lr: float = 1e-3, importance_lr: float = 1e-2
    ) -> None:
        given = {"steps": steps, "latent": latent, "hidden": hidden, "lr": lr, "importance_lr": importance_lr}
        for name, value in given.items():
            check_number(name, value, above=0, reason="FedDNA cannot learn with it")
        self.steps = steps
        self.latent = latent
        self.hidden = hidden
        self.lr = lr
        self.importance_lr = importance_lr
        self.gammas: dict[int, float] = {}
        #: state of the VAE and f, None before the first round; every round, resumed or not, rebuilds both from it
        self._learned: StateDict | None = None

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        _statistics_of(model, StateLayout(model))

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self._means, self._variances = _statistics_of(model, self.layout)

    def finish_round(self) -> Aggregate:
        clients = [item.update.client for item in self.cohort]
        # The networks are trained on the CPU: they are small, and the host decides after every step whether to stop.
        sizes = self.sizes.cpu()
        own = self._received_statistics()
        gammas = self._learn_gammas(own, sizes)  # eq. 5
        new = moved(own, twins(own, sizes), gammas)  # eq. 4, applied once: inside `repeat` it would compound
        for client, mean, var in zip(clients, *self._on_device(new), strict=True):
            self.memory.put(client, self._entries(mean, var))
        self.gammas = dict(zip(clients, gammas.tolist(), strict=True))

        mean, var = self._on_device(pooled(new, sizes))
        return Aggregate(
            {**self.result(self.mean), **self._entries(mean[0], var[0])},  # eq. 3
            metrics={
                "feddna/gamma_mean": gammas.mean(),
                "feddna/gamma_min": gammas.min(),
                "feddna/gamma_max": gammas.max(),
                "feddna/spread": spread(own, sizes),
            },
        )

    def personal_state(self, client: int) -> StateDict:
        return self.memory.get(client, self.device) or {}

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self._learned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._learned = require_type(state_dict["learned"], StateDict | None, "learned")

    def _learn_gammas(self, own: Statistics, sizes: Tensor) -> Tensor:
        """Train the networks on this round and return γ_k; a single client keeps its own statistics."""
        if len(sizes) == 1:
            return torch.ones_like(sizes)
        # The server may run under 16-bit autocast, and a caller may have switched gradients off.
        with torch.autocast("cpu", enabled=False), torch.enable_grad():
            learner = self._learner(entries=own.mean.shape[1] + own.var.shape[1])
            generator = torch.Generator().manual_seed(seed_for("feddna", self.seed, self.round.number))
            gammas = learner.learn(own, sizes, self.steps, self.lr, self.importance_lr, generator)
        self._learned = dict(learner.state_dict())
        return gammas

    def _learner(self, entries: int) -> ImportanceLearner:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_for("feddna nets", self.seed))
            learner = ImportanceLearner(entries, self.latent, self.hidden)
        if self._learned is not None:
            learner.load_state_dict(self._learned)
        return learner

    def _on_device(self, statistics: Statistics) -> Statistics:
        return Statistics(to_device(statistics.mean, self.device), to_device(statistics.var, self.device))

    def _received_statistics(self) -> Statistics:
        """Return the statistics that the clients sent, on the CPU."""
        means, variances = [], []
        for item in self.received:
            values = self.layout.split(self.layout.parameters, item.state.parameters)
            values |= self.layout.split(self.layout.statistics, item.state.statistics)
            means.append(torch.cat([values[name].flatten() for name in self._means]))
            variances.append(torch.cat([values[name].flatten() for name in self._variances]))
        width = sum(self.layout.shapes[name].numel() for name in self._means)
        return Statistics(self.rows_of_all(means, width).cpu(), self.rows_of_all(variances, width).cpu())

    def _entries(self, mean: Tensor, var: Tensor) -> StateDict:
        """Return one row of statistics as entries of the model's state."""
        values = self.layout.split(self._means, mean) | self.layout.split(self._variances, var)
        entries = {name: value.to(self.start_state[name].dtype, copy=True) for name, value in values.items()}
        return entries | {alias: entries[name] for alias, name in self.layout.aliases.items() if name in entries}


def _statistics_of(model: nn.Module, layout: StateLayout) -> tuple[list[str], list[str]]:
    """Return the names of a model's means and variances, or raise an error if it has none."""
    means, variances = statistics_entries(model, layout)
    if not means:
        raise MisconfigurationError(
            f"FedDNA on {type(model).__name__}, which has neither BatchNorm with running statistics nor LayerNorm with"
            " trainable weight and bias: use FedAvg, or a model with one of them"
        )
    return means, variances
