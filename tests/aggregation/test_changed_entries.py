"""Frozen parameters and boolean buffers: combined if a client changed them, the global bits if no client did."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import FedAvg
from fl_lightning.aggregation.changed_entries import ChangedEntries
from fl_lightning.core.state import snapshot
from tests.aggregation.test_fedavg import GatheredMean

BOTH = pytest.mark.parametrize("aggregator", [FedAvg, GatheredMean])


class Rest(nn.Module):
    """One trainable layer, and an entry of every kind that training moves without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.teacher = nn.Parameter(torch.tensor([0.1, -float("inf"), 3.0]), requires_grad=False)
        self.levels = nn.Parameter(torch.tensor([5, -7], dtype=torch.int8), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True, False]))
        self.register_buffer("phase", torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64))


def updates_of(model: nn.Module, *changes: dict, samples=(3, 1, 2)) -> list[ClientUpdate]:
    """Return one client per dictionary of changed entries."""
    return [ClientUpdate(k, {**snapshot(model), **change}, samples[k]) for k, change in enumerate(changes)]


@BOTH
def test_a_frozen_parameter_becomes_the_weighted_mean_of_all_clients(aggregator):
    model = Rest()
    updates = updates_of(model, {}, {"teacher": torch.tensor([4.0, 5.0, 6.0])}, {"teacher": torch.tensor([1.0, 2, 3])})
    teacher = aggregator().aggregate(model, updates).state["teacher"]
    start = np.float32(0.1).astype(np.float64)
    expected = [(3 * start + 1 * 4 + 2 * 1) / 6, -np.inf, (3 * 3 + 1 * 6 + 2 * 3) / 6]
    np.testing.assert_array_equal(teacher.numpy(), np.array(expected, dtype=np.float32))


@BOTH
def test_a_single_client_replaces_every_kind_of_entry_bit_for_bit(aggregator):
    model = Rest()
    change = {
        "teacher": torch.tensor([1e-30, 2.0, 1 / 3]),
        "levels": torch.tensor([-128, 3], dtype=torch.int8),
        "mask": torch.tensor([False, False, True, True]),
        "phase": torch.tensor([0.1 + 0.2j, 0j], dtype=torch.complex64),
    }
    state = aggregator().aggregate(model, updates_of(model, change)).state
    for name, value in change.items():
        assert torch.equal(state[name], value), name


@BOTH
def test_a_boolean_entry_takes_the_value_with_more_than_half_of_the_weight_and_stays_in_a_tie(aggregator):
    model = Rest()  # the mask is 1 0 1 0
    updates = updates_of(
        model,
        {"mask": torch.tensor([False, True, True, False])},
        {"mask": torch.tensor([True, False, False, True])},
        {},
    )
    # The weights are 3, 1 and 2, so client 0 alone makes a tie.
    assert aggregator().aggregate(model, updates).state["mask"].tolist() == [True, False, True, False]
    heavier = updates_of(model, updates[0].state, updates[1].state, {}, samples=(4, 1, 2))
    assert aggregator().aggregate(model, heavier).state["mask"].tolist() == [False, True, True, False]


def test_a_frozen_integer_entry_takes_the_largest_value():
    model = Rest()
    updates = updates_of(model, {"levels": torch.tensor([9, -9], dtype=torch.int8)}, {})
    assert FedAvg().aggregate(model, updates).state["levels"].tolist() == [9, -7]


@BOTH
def test_what_no_client_changed_keeps_its_bits_without_being_summed(aggregator, monkeypatch):
    model = Rest()
    monkeypatch.setattr(ChangedEntries, "_nothing", lambda self, start: pytest.fail("summed"))
    start = snapshot(model)
    state = aggregator().aggregate(model, updates_of(model, {}, {}, {}, samples=(7, 11, 13))).state
    for name in ("teacher", "levels", "mask", "phase"):
        assert torch.equal(state[name], start[name]), name


def test_a_client_may_leave_out_what_it_did_not_change():
    model = Rest()
    partial = {name: value for name, value in snapshot(model).items() if name.startswith("layer")}
    state = FedAvg().aggregate(model, [ClientUpdate(0, partial, 1)]).state
    assert torch.equal(state["teacher"], model.teacher)


def test_a_tied_frozen_parameter_stays_tied():
    model = Rest()
    model.twin = model.teacher
    change = torch.tensor([1.0, 2.0, 3.0])
    state = FedAvg().aggregate(model, updates_of(model, {"teacher": change, "twin": change})).state
    assert torch.equal(state["teacher"], change)
    assert state["twin"] is state["teacher"]
