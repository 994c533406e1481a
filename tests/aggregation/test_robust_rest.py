"""Robust aggregators on whatever is no parameter: counters, masks of -inf, entries that clients change themselves."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.aggregation import (
    Aggregator,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    robust,
)
from fl_lightning.core.round import Round
from fl_lightning.core.state import snapshot
from tests.aggregation.test_changed_entries import Rest, updates_of
from tests.core.test_distributed import on_two_ranks
from tests.toys import ConvNet, identical, random_updates

MEDIANS = {
    "CoordinateMedian": CoordinateMedian,
    "TrimmedMean": lambda: TrimmedMean(0.4),
    "Krum": lambda: Krum(0.2),
    "MultiKrum": lambda: MultiKrum(0.2),
    "GeometricMedian": GeometricMedian,
}
EACH = pytest.mark.parametrize("name", MEDIANS)


def changed_updates(clients: int, generator) -> list[ClientUpdate]:
    """Return clients that change every kind of entry, except that each of them leaves one kind alone."""
    model = Rest()
    updates = []
    for number in range(clients):
        values = {
            "teacher": torch.tensor(generator.normal(size=3), dtype=torch.float32),
            "levels": torch.tensor(generator.integers(-128, 128, size=2), dtype=torch.int8),
            "mask": torch.tensor(generator.integers(0, 2, size=4).astype(bool)),
            "phase": torch.view_as_complex(torch.tensor(generator.normal(size=(2, 2)), dtype=torch.float32)),
        }
        values["teacher"][1] = -math.inf
        del values[list(values)[number % 4]]
        updates += updates_of(model, values, samples=[1000 if number == 0 else 1])
        updates[-1].client = number
    return updates


@EACH
@pytest.mark.parametrize("clients", [1, 2, 5, 6])
@pytest.mark.parametrize("block", [1, 2**22])
def test_an_entry_that_clients_change_becomes_the_median_over_all_clients(name, clients, block, generator, monkeypatch):
    monkeypatch.setattr(robust, "_BLOCK", block)
    model, updates = Rest(), changed_updates(clients, generator)
    state = MEDIANS[name]().aggregate(model, updates).state
    rows = {key: np.stack([update.state[key].numpy() for update in updates]) for key in snapshot(model)}
    finite = [0, 2]
    np.testing.assert_allclose(state["teacher"][finite], np.median(rows["teacher"][:, finite], axis=0), rtol=1e-6)
    assert state["teacher"][1] == -math.inf
    lower = np.sort(rows["levels"], axis=0)[(clients - 1) // 2]
    assert state["levels"].tolist() == lower.tolist()
    share = rows["mask"].mean(axis=0)
    assert state["mask"].tolist() == np.where(share == 0.5, model.mask.numpy(), share > 0.5).tolist()
    parts = np.median(rows["phase"].real, axis=0) + 1j * np.median(rows["phase"].imag, axis=0)
    np.testing.assert_allclose(state["phase"], parts, rtol=1e-6)


@EACH
def test_less_than_half_of_the_clients_cannot_move_an_entry_that_the_others_leave_alone(name):
    model = Rest()
    bad = {
        "teacher": torch.full((3,), 3e38),
        "levels": torch.full((2,), 127, dtype=torch.int8),
        "mask": ~model.mask,
        "phase": torch.full((2,), 3e38 + 3e38j, dtype=torch.complex64),
    }
    updates = updates_of(model, bad, {}, {}, bad, {}, samples=[10**9, 1, 1, 10**9, 1])
    assert identical(MEDIANS[name]().aggregate(model, updates).state, snapshot(model))


@EACH
def test_a_counter_becomes_the_median_so_that_a_bad_client_cannot_make_it_overflow(name, generator):
    updates = random_updates(ConvNet(), 5, generator)
    for update, count in zip(updates, (7, 2**63 - 1, 5, 6, -(2**63)), strict=True):
        update.state["norm.num_batches_tracked"] = torch.tensor(count)
    assert MEDIANS[name]().aggregate(ConvNet(), updates).state["norm.num_batches_tracked"] == 6


class Masked(nn.Module):
    """Has an attention mask among its statistics."""

    def __init__(self, mask: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        if mask:
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))


@pytest.mark.parametrize("name", [*MEDIANS, "NormClipping"])
def test_a_mask_with_infinite_numbers_stays_and_changes_nothing_else(name, generator):
    make = MEDIANS.get(name, lambda: NormClipping(1.0))
    states = []
    for mask in (False, True):
        torch.manual_seed(0)
        model = Masked(mask)
        updates = []
        for client in range(6):
            weight = torch.full((2, 2), 1e6 if client == 0 else float(client))
            updates.append(ClientUpdate(client, {**snapshot(model), "layer.weight": weight}, 1))
        states.append(make().aggregate(model, updates).state)
    assert torch.equal(states[1].pop("mask"), model.mask)
    assert identical(*states)


def test_norm_clipping_keeps_an_infinite_number_that_a_client_changes(generator):
    model = Masked(True)
    update = ClientUpdate(0, {**snapshot(model), "mask": torch.tensor([0.5, 3.0])}, 1)
    assert NormClipping(1.0).aggregate(model, [update]).state["mask"].tolist() == [0.5, -math.inf]


def finished(aggregator: Aggregator, model: nn.Module, updates: list[ClientUpdate]) -> dict[str, torch.Tensor]:
    aggregator.begin_round(model, Round(0, None, 0, snapshot(model)))
    for update in updates:
        aggregator.receive(update, update.num_samples)
    aggregator.reduce()
    return aggregator.finish_round().state


@EACH
@pytest.mark.parametrize("clients", [1, 5])
def test_two_ranks_find_the_same_medians_as_one(name, clients, generator, tmp_path):
    rest, counted = changed_updates(clients, generator), random_updates(ConvNet(), clients, generator)
    torch.manual_seed(0)
    for number, (model, updates) in enumerate([(Rest(), rest), (ConvNet(), counted)]):
        whole = finished(MEDIANS[name](), model, updates)

        def check(rank, model=model, updates=updates, whole=whole):
            shared = finished(MEDIANS[name](), model, updates[rank::2])
            for key, value in whole.items():
                torch.testing.assert_close(shared[key], value, rtol=1e-6, atol=1e-6)

        folder = tmp_path / str(number)
        folder.mkdir()
        on_two_ranks(check, folder)
