import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import MixedNodes

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)
ENTRIES = st.one_of(st.integers(1, 10), st.just("iid"), st.sampled_from(["1-5", "6-10"]))


def classes_of(nodes: list[np.ndarray]) -> list[int]:
    return [len(np.unique(LABELS[node])) for node in nodes]


@given(classes=st.lists(ENTRIES, min_size=1, max_size=12), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_node_has_its_number_of_samples_without_duplicates(classes, seed):
    for node in MixedNodes(classes, 300).assign(LABELS, seed):
        assert len(np.unique(node)) == len(node) == 300


@given(classes=st.lists(st.integers(1, 10), min_size=1, max_size=12), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_every_node_holds_its_number_of_classes(classes, seed):
    # with 300 samples from at most ten classes, one of a node's classes is missing with probability 1e-13
    assert classes_of(MixedNodes(classes, 300).assign(LABELS, seed)) == classes


def test_figure_2_has_five_nodes_with_few_classes_and_five_with_all():
    nodes = MixedNodes([1, 1, 1, 2, 2, "iid", "iid", "iid", "iid", "iid"], 600).assign(LABELS, seed=1)
    assert classes_of(nodes) == [1, 1, 1, 2, 2, 10, 10, 10, 10, 10]


def test_case_2_draws_the_number_of_classes_uniformly_from_its_range():
    partition = MixedNodes(["1-5"] * 5 + ["6-10"] * 5, 100)
    drawn = np.array([classes_of(partition.assign(LABELS, seed)) for seed in range(100)])
    for half, values in ((drawn[:, :5], range(1, 6)), (drawn[:, 5:], range(6, 11))):
        counts = [np.count_nonzero(half == value) for value in values]
        assert sum(counts) == 500
        assert all(abs(count - 100) < 45 for count in counts)  # five standard deviations


def test_nodes_draw_independently_of_each_other():
    first, second = MixedNodes(["iid", "iid"], 3000).assign(LABELS, seed=1)
    shared = len(np.intersect1d(first, second))
    # hypergeometric: 3000 draws of 6000, 3000 of them marked: mean 1500, standard deviation 19.4
    assert abs(shared - 1500) < 100


def test_a_node_of_one_class_draws_it_uniformly():
    drawn = [LABELS[MixedNodes([1], 5).assign(LABELS, seed)[0][0]] for seed in range(500)]
    assert np.abs(np.bincount(drawn, minlength=10) - 50).max() < 35  # five standard deviations


def test_a_power_law_keeps_the_total_number_of_samples():
    sizes = [len(node) for node in MixedNodes([10, 10, 10], 110, sizes="power_law", min_samples=61).assign(LABELS, 0)]
    assert sizes == [179, 90, 61]  # 330 - 61 = 269 in the proportion 1 : 1/2; 1/3 would have been 60


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixedNodes([], 5), r"classes=\[\]"),
        (lambda: MixedNodes([0], 5), "the entry 0"),
        (lambda: MixedNodes(["some"], 5), "the entry 'some'"),
        (lambda: MixedNodes(["5-2"], 5), "the entry '5-2'"),
        (lambda: MixedNodes([1], 0), "samples_per_node=0"),
        (lambda: MixedNodes([11], 5).assign(LABELS, 0), "classes=11, but the data set has 10"),
        (lambda: MixedNodes([1, 1], 601).assign(LABELS, 0), "node 0 601 samples, but its 1 of 10 classes have 600"),
    ],
)
def test_nodes_that_cannot_be_filled_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
