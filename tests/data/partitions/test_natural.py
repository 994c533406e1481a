import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ByColumn, ByList


@given(values=st.lists(st.sampled_from(["ann", "bob", "cyd", "dan"]), min_size=1, max_size=60))
@settings(deadline=None, max_examples=50)
def test_every_value_of_a_column_is_a_client(values):
    parts = ByColumn("user").assign(np.array(values), seed=0)
    assert [{values[i] for i in part} for part in parts] == [{value} for value in sorted(set(values))]
    assert sorted(np.concatenate(parts)) == list(range(len(values)))


def test_values_with_too_few_samples_do_not_become_clients():
    parts = ByColumn("user", min_samples=2).assign(np.array([4, 9, 4, 7, 9, 4]), seed=0)
    assert [part.tolist() for part in parts] == [[0, 2, 5], [1, 4]]


LISTS = [[3, 1], [0], [1, 2]]


@pytest.mark.parametrize("kind", ["lists", "list.json", "object.json", "arrays.npz"])
def test_lists_of_every_kind_are_used_unchanged(tmp_path, kind):
    file = tmp_path / kind
    if kind == "list.json":
        file.write_text(json.dumps(LISTS))
    elif kind == "object.json":
        file.write_text(json.dumps({"zoe": LISTS[0], "ann": LISTS[1], "bob": LISTS[2]}))
    elif kind == "arrays.npz":
        np.savez(file, *map(np.array, LISTS))
    parts = ByList(LISTS if kind == "lists" else str(file)).assign(np.zeros(4), seed=0)
    assert [part.tolist() for part in parts] == LISTS


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "lists holds no lists of indices"),
        ([[0], [1, 4]], "lists: client 1 has the index 4, but the 4 training samples are numbered from 0 to 3"),
        ([[-1]], "client 0 has the index -1"),
        ([[0, 2, 0]], "client 0 lists a sample twice"),
        ([[0.5]], "client 0 has no flat list of whole numbers"),
        ([[[0], [1, 2]]], "client 0 has no flat list of whole numbers"),
        ("nowhere.json", "lists=nowhere.json, but there is no such file"),
    ],
)
def test_bad_lists_are_refused(lists, message):
    with pytest.raises(MisconfigurationError, match=message):
        ByList(lists).assign(np.zeros(4), seed=0)


@pytest.mark.parametrize("name", ["broken.json", "broken.npz"])
def test_a_broken_file_of_lists_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"[[1, 2")
    with pytest.raises(MisconfigurationError, match=f"{name} is not a JSON or .npz file, or is truncated"):
        ByList(str(tmp_path / name)).assign(np.zeros(4), seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByColumn("user", min_samples=0), "min_samples=0"),
        (
            lambda: ByColumn("user", min_samples=3).assign(np.array([1, 1, 2]), 0),
            "no value of the column user has more than 2 samples: set .* to 2 or fewer",
        ),
    ],
)
def test_a_column_without_clients_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
