"""Attacks in which each bad client changes its own update. They leave statistics and counters alone."""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.attacks.base import Attack
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateLayout
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate
from fl_lightning.transforms import UploadTransform


class UpdateAttack(Attack, UploadTransform):
    """Base of the attacks that replace a bad client's Δ_k with something else."""

    @abstractmethod
    def attack(self, difference: Tensor, client: int, round: Round) -> Tensor:
        """Return what a bad client sends instead of its update.

        Args:
            difference: Δ_k, how far the client's training moved its parameters.
            client: the client's number.
            round: the round.
        """

    def __call__(self, update: ClientUpdate, round: Round, layout: StateLayout) -> ClientUpdate:
        if not self.is_bad(update.client, round):
            return update
        start = layout.flatten(round.start_of(update.client)).parameters
        trained = layout.flatten(update.state).parameters
        return with_parameters(update, start + self.attack(trained - start, update.client, round), layout)


class SignFlip(UpdateAttack):
    """Bad clients send -s Δ_k, which moves the model in the direction opposite to their training.

    Li, Xu, Chen, Giannakis, Ling. RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from
    Heterogeneous Datasets. AAAI 2019 (the sign-flipping attack).

    Args:
        share: the share of all clients that is bad.
        scale: s, the factor by which the update's length grows.
    """

    def __init__(self, share: float, scale: float = 1.0) -> None:
        super().__init__(share)
        self.scale = _positive("scale", scale, self)

    def attack(self, difference: Tensor, client: int, round: Round) -> Tensor:
        return -self.scale * difference


class ScaledUpdate(UpdateAttack):
    """Bad clients send s Δ_k, to outweigh the others.

    Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How to Backdoor Federated Learning. AISTATS 2020 (model replacement,
    eq. 3).

    Args:
        share: the share of all clients that is bad.
        scale: s, the factor by which the update's length grows.
    """

    def __init__(self, share: float, scale: float = 10.0) -> None:
        super().__init__(share)
        self.scale = _positive("scale", scale, self)

    def attack(self, difference: Tensor, client: int, round: Round) -> Tensor:
        return self.scale * difference


class GaussianNoise(UpdateAttack):
    """Bad clients send noise instead of an update.

    Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
    NeurIPS 2017 (section 6, Gaussian).

    Args:
        share: the share of all clients that is bad.
        std: standard deviation of the noise in every parameter.
    """

    def __init__(self, share: float, std: float = 1.0) -> None:
        super().__init__(share)
        self.std = _positive("std", std, self)

    def attack(self, difference: Tensor, client: int, round: Round) -> Tensor:
        # drawn on the CPU, because a GPU's generator would draw different numbers
        generator = torch.Generator().manual_seed(seed_for("noise of bad clients", round.seed, round.number, client))
        noise = torch.randn(len(difference), generator=generator, dtype=torch.float32)
        return self.std * to_device(noise, difference.device).to(difference.dtype)


def with_parameters(update: ClientUpdate, parameters: Tensor, layout: StateLayout) -> ClientUpdate:
    """Return a copy of an update with its parameters replaced by a vector."""
    trained = layout.flatten(update.state)
    state = layout.unflatten(FlatState(parameters, trained.statistics, trained.counters), like=update.state)
    return replace(update, state=state)


def _positive(name: str, value: float, attack: object) -> float:
    check_number(name, value, above=0, setting=f"{name} of {type(attack).__name__}")
    return value
