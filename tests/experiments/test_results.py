import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.experiments.results import rounds_to
from fl_lightning.experiments.runs import Series
from tests.experiments.fakes import result, run

accuracies = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12)


def test_mean_and_standard_deviation_are_over_the_seeds():
    values = [[0.1, 0.7, 0.6], [0.2, 0.8, 0.8], [0.3, 0.75, 0.4]]
    score = result(*map(run, values)).scores["val/accuracy"]
    assert score.final.mean == pytest.approx(statistics.mean([0.6, 0.8, 0.4]))
    assert score.final.std == pytest.approx(statistics.stdev([0.6, 0.8, 0.4]))
    assert score.best.mean == pytest.approx(statistics.mean([0.7, 0.8, 0.75]))
    assert score.best.std == pytest.approx(statistics.stdev([0.7, 0.8, 0.75]))


def test_the_lowest_loss_is_the_best():
    assert result(run([3.0, 1.0, 2.0], "val/loss"), metrics=["val/loss"]).scores["val/loss"].best.mean == 1.0


@given(accuracies, st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_first_round_at_the_target_counts_from_one(values, target):
    expected = next((number for number, value in enumerate(values, start=1) if value >= target), math.inf)
    series = run(values).scalars["val/accuracy"]
    assert rounds_to(series, target, "val/accuracy") == expected


@given(st.lists(accuracies, min_size=1, max_size=5), st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_median_counts_a_target_that_was_not_reached_as_infinite(seeds, target):
    rounds = [next((n for n, value in enumerate(values, start=1) if value >= target), math.inf) for values in seeds]
    reach = result(*map(run, seeds), targets=[target]).targets[target]
    assert reach.rounds == statistics.median(rounds)
    assert reach.reached == sum(number < math.inf for number in rounds)


def test_a_loss_reaches_its_target_from_above():
    assert rounds_to(run([3.0, 1.0, 0.5], "val/loss").scalars["val/loss"], 1.0, "val/loss") == 2


def test_the_first_evaluated_round_at_the_target_is_reported_if_some_rounds_are_not_evaluated():
    assert rounds_to(Series(np.array([5, 10, 15]), np.array([0.1, 0.9, 0.95])), 0.9, "val/accuracy") == 10


def test_time_and_bytes_are_means_over_the_seeds():
    cell = result(run([0.5], seconds=10.0), run([0.5], seconds=30.0))
    assert cell.seconds == 20.0
    assert cell.bytes == 3e6


def test_a_target_that_is_met_exactly_is_reached():
    stored = float(np.float32(342 / 360))  # TensorBoard keeps 32 bits
    assert rounds_to(Series(np.array([1, 2]), np.array([0.5, stored])), 0.95, "val/accuracy") == 2


@pytest.mark.parametrize("metric", ["val/error", "test_perplexity"])
def test_smaller_errors_and_perplexities_are_better(metric):
    assert result(run([3.0, 1.0, 2.0], metric), metrics=[metric]).scores[metric].best.mean == 1.0
