from dataclasses import replace

import torch

from fl_lightning import ClientUpdate
from fl_lightning.core.round import Round

START = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}


def round_with(personal=None) -> Round:
    return Round(0, None, 0, START, personal=personal)


def moved_by(distance: float) -> ClientUpdate:
    return ClientUpdate(7, {name: value + distance for name, value in START.items()}, 1)


def test_the_difference_of_an_update_is_a_vector_of_the_named_entries():
    round_ = round_with()
    assert round_.difference(moved_by(0.5), ["a", "b"]).tolist() == [0.5, 0.5, 0.5]
    assert round_.difference(moved_by(0.5), ["b"]).tolist() == [0.5]


def test_the_difference_is_taken_from_the_state_that_the_client_started_from():
    round_ = round_with(personal=lambda client: {"b": torch.tensor([float(client)])})
    assert round_.difference(moved_by(0.5), ["a", "b"]).tolist() == [0.5, 0.5, 3.5 - 7]


def test_everyone_who_asks_for_the_same_entries_gets_the_same_vector():
    round_, update = round_with(), moved_by(0.5)
    first = round_.difference(update, ["a", "b"])
    assert round_.difference(update, ["a", "b"]) is first
    assert round_.difference(update, ["b"]).tolist() == [0.5]


def test_an_update_with_another_state_has_another_difference():
    round_, update = round_with(), moved_by(0.5)
    round_.difference(update, ["a"])
    assert round_.difference(replace(update, state=moved_by(2.0).state), ["a"]).tolist() == [2.0, 2.0]


def test_the_difference_of_16_bit_weights_is_exact():
    start = {"a": torch.tensor([1.0], dtype=torch.bfloat16)}
    update = ClientUpdate(0, {"a": torch.tensor([2.0**-9], dtype=torch.bfloat16)}, 1)
    assert Round(0, None, 0, start).difference(update, ["a"]).tolist() == [2.0**-9 - 1]  # bfloat16 would round it


def test_a_difference_is_exact_for_float32():
    start, end = torch.tensor([1.0]), torch.tensor([2.0**-30])
    update = ClientUpdate(client=0, state={"a": end}, num_samples=1)
    assert Round(0, None, 0, {"a": start}).difference(update, ["a"]).tolist() == [2.0**-30 - 1]


def test_clients_share_the_memory_of_their_differences():
    round_ = round_with()
    first = round_.difference(moved_by(0.5), ["a", "b"])
    second = round_.difference(moved_by(2.0), ["a", "b"])
    assert first.data_ptr() == second.data_ptr()
    assert second.tolist() == [2.0, 2.0, 2.0]


def test_a_new_update_is_not_taken_for_one_that_no_longer_exists():
    round_ = round_with()
    for distance in (0.5, 2.0, 0.25):  # Python often puts the next object where the last one was
        assert round_.difference(moved_by(distance), ["a"]).tolist() == [distance, distance]
