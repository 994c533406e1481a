from typing import Any, TypedDict

import pytest
import torch
from torch import Tensor

from fl_lightning.core.plain_types import find_difference, find_mismatch, require_type


class Note(TypedDict, total=False):
    note: str


class Inner(Note):
    number: float


class Outer(TypedDict):
    inner: Inner
    rows: list[int]
    states: dict[str, Tensor] | None


RIGHT: dict[str, Any] = {"inner": {"number": 1}, "rows": [1, 2], "states": None}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"further": object()}, None),
        ({"inner": {"number": 1.5, "note": "a"}, "states": {"a": torch.ones(2)}}, None),
        ({"inner": 3}, "inner is an int, not a dict"),
        ({"inner": {"number": True}}, "inner.number is a bool, not a float"),
        ({"inner": {"number": 1, "note": 2}}, "inner.note is an int, not a str"),
        ({"inner": {}}, "inner lacks number"),
        ({"rows": (1, 2)}, "rows is a tuple, not a list"),
        ({"rows": [1, None]}, "rows.1 is None, not an int"),
        ({"states": []}, "states is a list, not a dict or None"),
        ({"states": {"a": 3}}, "states.a is an int, not a Tensor"),
        ({"states": {3: torch.ones(2)}}, "a key of states is an int, not a str"),
        ({"states": {"a line\nof a file": 3}}, "states.(one of its keys) is an int, not a Tensor"),
    ],
)
def test_the_first_value_of_another_type_is_named(change, problem):
    assert find_mismatch(RIGHT | change, Outer) == problem


def test_a_value_of_the_right_type_is_returned():
    assert require_type([3], list[int], "rows") == [3]
    with pytest.raises(TypeError, match=r"^rows is a str, not a list$"):
        require_type("3", list[int], "rows")


EXAMPLE = {"best": None, "score": torch.tensor(0.0), "count": 1, "groups": [{"lr": 1, "fused": False}]}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"best": 3, "score": None, "count": 2, "groups": [{"lr": 0.5, "fused": None}], "further": 1}, None),
        ({}, None),
        ([], "it is a list, not a dict"),
        ({"count": None}, "count is None, not an int"),
        ({"count": True}, "count is a bool, not an int"),
        ({"groups": {}}, "groups is a dict, not a list"),
        ({"groups": [{"fused": 1}]}, "groups.0.fused is an int, not a bool"),
        ({"score": 1.0}, "score is a float, not a Tensor"),
        (
            {"score": torch.ones(2)},
            "score is a tensor of type torch.float32 and shape [2], not a tensor of type torch.float32 and shape []",
        ),
    ],
)
def test_a_value_that_differs_in_type_from_an_example_is_named(value, problem):
    assert find_difference(value, EXAMPLE) == problem
