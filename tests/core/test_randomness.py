"""Random numbers are a pure function of the seed and their purpose."""

import random

import numpy as np
import torch

from fl_lightning.core.randomness import preserved_generators, seed_for, seed_global_generators


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_preserved_generators_continue_as_if_nothing_had_been_drawn():
    seed_global_generators(5)
    draws()
    expected = draws(), draws()
    seed_global_generators(5)
    draws()
    first = draws()
    with preserved_generators():
        seed_global_generators(7)
        draws()
    assert (first, draws()) == expected


def test_purposes_and_keys_have_different_seeds():
    seeds = {seed_for(purpose, 1, key) for purpose in ("client", "mask") for key in range(50)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
