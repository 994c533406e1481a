"""Aggregators against attacks, on data that is easy to learn."""

import pytest
import torch

from fl_lightning import LocalTraining
from fl_lightning.aggregation import (
    CoordinateMedian,
    FedAvg,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormClipping,
    TrimmedMean,
)
from fl_lightning.attacks import GaussianNoise, LabelFlip, ScaledUpdate, SignFlip
from fl_lightning.callbacks import FederatedServer
from fl_lightning.data import IID
from tests.toys import Blobs, Net, federate

ROBUST = {
    "median": CoordinateMedian,
    "trimmed mean": lambda: TrimmedMean(0.3),
    "Krum": lambda: Krum(0.3),
    "multi-Krum": lambda: MultiKrum(0.3),
    "geometric median": lambda: GeometricMedian(iterations=10),
}


def accuracy(aggregator, transforms=(), callbacks=()) -> float:
    torch.manual_seed(0)
    client = LocalTraining(epochs=2, callbacks=list(callbacks), execution="vectorized")
    server = FederatedServer(aggregator, "uniform", client, transforms=list(transforms))
    _, trainer = federate(Net(), Blobs(samples=400), partition=IID(10), server=server, rounds=4)
    return float(trainer.callback_metrics["val_accuracy"])


@pytest.mark.parametrize("aggregator", ROBUST)
def test_robust_aggregators_learn_in_spite_of_three_bad_clients_out_of_ten(aggregator):
    assert accuracy(ROBUST[aggregator](), [SignFlip(0.3, 20.0)]) > 0.85
    assert accuracy(ROBUST[aggregator](), [GaussianNoise(0.3, 20.0)]) > 0.85


def test_norm_clipping_withstands_long_updates():
    assert accuracy(NormClipping(1.0), [GaussianNoise(0.3, 20.0)]) > 0.85


@pytest.mark.parametrize("attack", [SignFlip(0.3, 20.0), GaussianNoise(0.3, 20.0)], ids=["sign flip", "noise"])
def test_the_same_clients_destroy_the_mean(attack):
    assert accuracy(FedAvg()) > 0.85
    assert accuracy(FedAvg(), [attack]) < 0.6


def test_a_majority_of_flipped_labels_wins_against_any_aggregator():
    flipped = [LabelFlip(0.8, classes=4)]
    assert accuracy(FedAvg(), callbacks=flipped) < 0.3
    assert accuracy(CoordinateMedian(), callbacks=flipped) < 0.3


def test_attacks_combine():
    assert accuracy(CoordinateMedian(), [ScaledUpdate(0.3, 50.0)], [LabelFlip(0.3, classes=4)]) > 0.85
