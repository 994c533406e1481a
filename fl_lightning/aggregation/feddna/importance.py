"""The importance weights of FedDNA: how much of its own statistics each client keeps.

Duan, Li, Lu. FedDNA: Federated Learning with Decoupled Normalization-Layer Aggregation for Non-IID Data. ECML PKDD
2021 (eq. 2 and 4-11).

This module works on tensors only; the aggregator is in :mod:`fl_lightning.aggregation.feddna.aggregator`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam

_EPSILON = 1e-5  # BatchNorm's default, so that even a constant channel has a scale above 0
_LOG_VAR_LIMIT = 8.0
_INPUT_LIMIT = 1e4  # only dead channels reach it; the squared gradient must fit into float32
_PATIENCE, _TOLERANCE = 10, 1e-3


class Statistics(NamedTuple):
    """Means and variances of the normalisation layers, one row per client and one column per entry.

    LayerNorm keeps no statistics, so its bias stands in for the mean and its weight for the variance. Because a weight
    may be negative, roots and logarithms are taken of its absolute value.
    """

    mean: Tensor
    var: Tensor


def pooled(statistics: Statistics, sizes: Tensor) -> Statistics:
    """Return one row for all clients (end of section 3.2): the plain mean, and Σ (n_k - 1) var_k / (Σ n_k - m)."""
    return _pool(statistics, sizes, torch.ones_like(sizes)[None])


def twins(statistics: Statistics, sizes: Tensor) -> Statistics:
    """Return, in row k, the pool of all clients except k (the sums of eq. 4); a single client is its own twin.

    With the paper's denominator |x| - K - 1, the weights of the variances would not sum to 1.
    """
    if len(sizes) == 1:
        return statistics
    return _pool(statistics, sizes, 1 - torch.eye(len(sizes), dtype=sizes.dtype, device=sizes.device))


def moved(own: Statistics, others: Statistics, gammas: Tensor) -> Statistics:
    """Move each client towards its twin by eq. 4: s_k ← γ_k s_k + (1 - γ_k) s_-k."""
    keep = gammas[:, None].to(own.mean.dtype)
    return Statistics(keep * own.mean + (1 - keep) * others.mean, keep * own.var + (1 - keep) * others.var)


def standardised(statistics: Statistics, centre: Statistics) -> Tensor:
    """Return the VAE's input: how far each client is from ``centre``, in units of each channel's scale.

    Dividing by the spread over the clients instead would amplify rounding errors once the clients agree.
    """
    scale = centre.var.abs() + _EPSILON
    mean = (statistics.mean - centre.mean) / scale.sqrt()
    log_var = ((statistics.var.abs() + _EPSILON) / scale).log()
    return torch.cat([mean, log_var], dim=1).clamp(-_INPUT_LIMIT, _INPUT_LIMIT).float()


def spread(statistics: Statistics, sizes: Tensor) -> float:
    """Return how much clients differ: the standard deviation of their standardised means, averaged over the entries."""
    means = standardised(statistics, pooled(statistics, sizes))[:, : statistics.mean.shape[1]]
    return float(means.std(dim=0, correction=0).mean())


class Gaussian(NamedTuple):
    """Diagonal Gaussians, one row per client and one column per latent dimension."""

    mean: Tensor
    log_var: Tensor


def divergence(p: Gaussian, q: Gaussian) -> Tensor:
    """Return KL(p ‖ q) of every latent dimension, clamped because rounding could make it negative."""
    squares = p.log_var.exp() + (p.mean - q.mean) ** 2
    return (0.5 * (q.log_var - p.log_var + squares / q.log_var.exp() - 1)).clamp(min=0)


class VAE(nn.Module):
    """Encodes statistics as low-dimensional Gaussians, so that twins can be compared (section 4.2).

    Args:
        entries: number of statistics per client, means and variances together.
        latent: number of dimensions of z.
        hidden: number of units in the hidden layers.
    """

    def __init__(self, entries: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(entries, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, entries))

    def encode(self, inputs: Tensor) -> Gaussian:
        """Return q_φ(z | w̃) for every row."""
        mean, log_var = self.encoder(inputs).chunk(2, dim=1)
        return Gaussian(mean, log_var.clamp(-_LOG_VAR_LIMIT, _LOG_VAR_LIMIT))

    def loss(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the negative ELBO (eq. 11).

        The squared errors are summed: if they were averaged, the KL term would dominate and collapse the posterior.
        """
        posterior = self.encode(inputs)
        prior = Gaussian(torch.zeros_like(posterior.mean), torch.zeros_like(posterior.log_var))
        noise = torch.randn(posterior.mean.shape, generator=generator)
        decoded = self.decoder(posterior.mean + (0.5 * posterior.log_var).exp() * noise)
        return (0.5 * ((decoded - inputs) ** 2).sum(1) + divergence(posterior, prior).sum(1)).mean()


class Importance(nn.Sequential):
    """f of eq. 5: maps the divergence between a client and its twin to the client's γ in (0, 1).

    Args:
        latent: number of dimensions of the divergence.
    """

    def __init__(self, latent: int) -> None:
        super().__init__(nn.Linear(latent, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, divergences: Tensor) -> Tensor:
        """Return one γ per row."""
        return super().forward(divergences.log1p()).squeeze(1)


class ImportanceLearner(nn.Module):
    """The two players of eq. 8: the VAE tells twins apart, f moves them together.

    Args:
        entries: number of statistics per client, means and variances together.
        latent: number of dimensions of z.
        hidden: number of units in the hidden layers of the VAE.
    """

    def __init__(self, entries: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.vae = VAE(entries, latent, hidden)
        self.importance = Importance(latent)

    def gammas(self, own: Tensor, others: Tensor) -> Tensor:
        """Compute γ from standardised statistics (eq. 5). No gradient reaches the VAE, because f must not train it."""
        with torch.no_grad():
            divergences = divergence(self.vae.encode(own), self.vae.encode(others))
        return self.importance(divergences)

    def learn(
        self, own: Statistics, sizes: Tensor, steps: int, lr: float, importance_lr: float, generator: torch.Generator
    ) -> Tensor:
        """Train both networks on a round's statistics (the ``repeat`` of algorithm 1) and return the clients' γ.

        Args:
            own: statistics that the clients sent.
            sizes: n_k.
            steps: maximum number of steps, each of which trains both networks; stops early once no γ changes.
            lr: learning rate of the VAE.
            importance_lr: learning rate of f.
            generator: draws the noise in the ELBO.
        """
        centre, others = pooled(own, sizes), twins(own, sizes)
        inputs = standardised(own, centre), standardised(others, centre)
        # Every round uses new optimisers: Adam would remember the large gradients from when the clients were far apart,
        # and would barely change f once they are close.
        vae_optimizer = Adam(self.vae.parameters(), lr)
        importance_optimizer = Adam(self.importance.parameters(), importance_lr)
        history: list[Tensor] = []
        for _ in range(steps):
            vae_optimizer.zero_grad()
            self.vae.loss(torch.cat(inputs), generator).backward()
            vae_optimizer.step()

            gammas = self.gammas(*inputs)
            importance_optimizer.zero_grad()
            self._distance(moved(own, others, gammas), sizes, centre).backward(inputs=[*self.importance.parameters()])
            importance_optimizer.step()

            history.append(gammas.detach())
            if len(history) > _PATIENCE and (history[-1] - history[-1 - _PATIENCE]).abs().max() < _TOLERANCE:
                break
        return self.gammas(*inputs).detach()

    def _distance(self, new: Statistics, sizes: Tensor, centre: Statistics) -> Tensor:
        """Compute the distance of eq. 2 to the twins of the moved clients, so that the best γ is 1/m: consensus.

        If the twins did not move, the best γ would be 0, and two clients would swap their statistics forever.
        """
        p, q = (self.vae.encode(standardised(side, centre)) for side in (new, twins(new, sizes)))
        return divergence(p, q).sum(1).mean()


def _pool(statistics: Statistics, sizes: Tensor, members: Tensor) -> Statistics:
    """Return one pooled row for each row of ``members``, which has a 1 for every client in the pool."""
    freedom = members * (sizes - 1).clamp(min=0)
    # If every client has one sample, no variance is more reliable than another, so the plain mean is used.
    freedom = torch.where(freedom.sum(1, keepdim=True) > 0, freedom, members)
    return Statistics(_weights(members) @ statistics.mean, _weights(freedom) @ statistics.var)


def _weights(rows: Tensor) -> Tensor:
    return rows / rows.sum(1, keepdim=True)
